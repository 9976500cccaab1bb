#include <cuda_runtime_api.h>

#include <utility>

#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/executor/captured_work.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

void LogIfFailed(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Log(LogLevel::kError, what, {{"error", cudaGetErrorName(error)}});
}

// A recording under way. It ends with End, or in the destructor if an exception was thrown.
class Recording {
 public:
  explicit Recording(StreamView stream) : stream_(stream) {}
  ~Recording() {
    if (is_under_way_) {
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(stream_.get(), &graph);
      if (graph != nullptr) LogIfFailed(cudaGraphDestroy(graph), "cudaGraphDestroy failed");
      cudaGetLastError();
    }
    if (graph_ != nullptr) LogIfFailed(cudaGraphDestroy(graph_), "cudaGraphDestroy failed");
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Calls of other threads that cannot be recorded, such as allocations, neither fail nor end the recording.
  absl::Status Begin() {
    is_under_way_ = true;  // whatever it returns: to end what did not begin does no harm
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    return absl::OkStatus();
  }
  absl::Status End() {
    is_under_way_ = false;
    RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(stream_.get(), &graph_));
    return absl::OkStatus();
  }
  cudaGraph_t graph() const { return graph_; }  // after End

 private:
  const StreamView stream_;
  bool is_under_way_ = false;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CapturedWork>> CapturedWork::Capture(StreamView stream,
                                                                    const std::function<absl::Status()>& queue) {
  Recording recording(stream);
  RETURN_IF_ERROR(recording.Begin());
  const absl::Status queued = queue();
  const absl::Status ended = recording.End();
  RETURN_IF_ERROR(queued);
  RETURN_IF_ERROR(ended);
  size_t num_nodes = 0;
  RETURN_IF_CUDA_ERROR(cudaGraphGetNodes(recording.graph(), nullptr, &num_nodes));
  cudaGraphExec_t work = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&work, recording.graph(), 0);
  std::unique_ptr<CapturedWork> captured;
  if (work != nullptr) captured.reset(new CapturedWork(work, static_cast<int64_t>(num_nodes)));
  RETURN_IF_CUDA_ERROR(instantiated);
  return captured;
}

CapturedWork::~CapturedWork() { LogIfFailed(cudaGraphExecDestroy(work_), "cudaGraphExecDestroy failed"); }

absl::Status CapturedWork::Launch(StreamView stream) {
  RETURN_IF_CUDA_ERROR(cudaGraphLaunch(work_, stream.get()));
  return absl::OkStatus();
}

}  // namespace voxserve
