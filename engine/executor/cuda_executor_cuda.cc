#include <new>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/executor/cuda_batch.h"
#include "engine/executor/cuda_executor.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

// Between batches a context keeps at most this much pinned memory for answers: the default limit of one message.
constexpr int64_t kKeptDownloadBytes = int64_t{64} << 20;

}  // namespace

BatchReport CudaExecutor::Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                              const RunOptions& options) {
  BatchReport output;
  state_.context->memory->BeginBatch();
  output.samples.resize(tasks.size());
  CudaBatch batch(program, tasks, limits, options, state_, output);
  try {
    output.status = batch.Run();
  } catch (const std::bad_alloc&) {
    output.status = OutOfHostMemory(state_.context->memory->refusal());
  }
  if (output.status.ok()) {
    state_.points.ReleaseSweeps();
    const CudaContext& cuda = *state_.context->cuda;
    output.bytes = {.fixed = cuda.gemm_workspace.bytes() + 2 * DeviceArena::kBlockBytes,
                    .points = cuda.batch.most_bytes(),
                    .features = cuda.features.most_bytes()};
    return output;
  }
  output.samples.clear();
  // host_is_full says that only the host's memory is full. If the kernel maps were made on the CPU, the GPU's memory is
  // full too, since it had no room for them.
  output.host_is_full =
      IsOutOfMemory(output.status) && !state_.context->memory->refusal().ok() && !output.geometry_on_cpu;
  // Waits for the stream, so that no work of this batch touches the memory that the next batch reuses. If the wait
  // succeeds, the device has not failed, even if a library reported an error of its own as a device failure.
  const absl::Status waited = state_.context->cuda->stream.view().Synchronize();
  if (IsDeviceFailure(waited)) {
    output.status = waited;
  } else if (IsDeviceFailure(output.status)) {
    output.status = WithReason(absl::InternalError(output.status.message()), error_reason::kInternal);
  }
  state_.points.ReleaseSweeps();
  batch.DropCaptured();
  if (!absl::IsOutOfRange(output.status)) {
    state_.captured.Clear();
    state_.context->cuda->ReleaseMemory();
  }
  return output;
}

int64_t CudaExecutor::allocated_bytes() const {
  const CudaContext& cuda = *state_.context->cuda;
  return cuda.batch.capacity() + cuda.features.capacity() + cuda.gemm_workspace.bytes();
}

void CudaExecutor::ReleaseHostMemory() {
  CudaContext& cuda = *state_.context->cuda;
  // Any thread may call this, and CUDA frees memory by the calling thread's device.
  if (cuda.download.capacity() > kKeptDownloadBytes && cuda.MakeCurrent().ok()) {
    state_.captured.Clear();  // its graphs copy to the memory that is released
    cuda.download.Release();
  }
  if (state_.context->memory->held_bytes() == 0) return;
  state_.context->input.Release();
  state_.context->memory->Settle();
}

}  // namespace voxserve
