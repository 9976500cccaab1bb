#include <cuda_runtime_api.h>

#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/stream.h"

namespace voxserve {
namespace {

void LogIfFailed(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Log(LogLevel::kError, what, {{"error", cudaGetErrorName(error)}});
}

}  // namespace

absl::Status StreamView::Synchronize() const {
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_));
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamView::IsCaptured() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}

absl::StatusOr<Stream> Stream::CreateOn(int device, StreamPriority priority) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  int lowest = 0, highest = 0;
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                    priority == StreamPriority::kLow ? lowest : highest));
  return Stream(stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) LogIfFailed(cudaStreamDestroy(stream_), "cudaStreamDestroy failed");
}

absl::StatusOr<Event> Event::Create() {
  cudaEvent_t event = nullptr;
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&event));
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) LogIfFailed(cudaEventDestroy(event_), "cudaEventDestroy failed");
}

absl::Status Event::Record(StreamView stream) {
  ASSIGN_OR_RETURN(const bool is_captured, stream.IsCaptured());
  if (!is_captured) {
    RETURN_IF_CUDA_ERROR(cudaEventRecord(event_, stream.get()));
    return absl::OkStatus();
  }
  // The record becomes a node after the stream's last work, and the next work does not wait for it. If the
  // next work had to wait, each record would take three microseconds.
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last_work = nullptr;
  size_t count = 0;
  RETURN_IF_CUDA_ERROR(cudaStreamGetCaptureInfo(stream.get(), &status, /*id_out=*/nullptr, &graph, &last_work,
                                                /*edgeData_out=*/nullptr, &count));
  cudaGraphNode_t node = nullptr;
  RETURN_IF_CUDA_ERROR(cudaGraphAddEventRecordNode(&node, graph, last_work, count, event_));
  return absl::OkStatus();
}

absl::Status Event::MakeStreamWait(StreamView stream) const {
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream.get(), event_, 0));
  return absl::OkStatus();
}

absl::Status Event::Synchronize() const {
  RETURN_IF_CUDA_ERROR(cudaEventSynchronize(event_));
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> Event::Since(const Event& start) const {
  float milliseconds = 0;
  RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, start.event_, event_));
  return absl::Milliseconds(double{milliseconds});
}

}  // namespace voxserve
