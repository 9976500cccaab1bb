#include <cuda_runtime_api.h>

#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/pinned_buffer.h"

namespace voxserve {
namespace {

constexpr int64_t kGranularity = int64_t{1} << 20;

void Free(char* data) {
  if (data == nullptr) return;
  if (const cudaError_t error = cudaFreeHost(data); error != cudaSuccess) {
    Log(LogLevel::kError, "cudaFreeHost failed", {{"error", cudaGetErrorName(error)}});
  }
}

}  // namespace

PinnedBuffer::~PinnedBuffer() { Free(data_); }

absl::Status PinnedBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return absl::OkStatus();
  Free(data_);
  data_ = nullptr;
  capacity_ = 0;
  // An eighth more: pinning is slow, and batches grow slowly.
  const int64_t wanted = (bytes + bytes / 8 + kGranularity - 1) / kGranularity * kGranularity;
  void* data = nullptr;
  RETURN_IF_CUDA_ERROR(cudaMallocHost(&data, static_cast<size_t>(wanted)));
  data_ = static_cast<char*>(data);
  capacity_ = wanted;
  return absl::OkStatus();
}

}  // namespace voxserve
