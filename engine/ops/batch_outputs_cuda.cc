#include <cuda_runtime_api.h>

#include "engine/base/status_macros.h"
#include "engine/ops/batch_outputs.h"
#include "engine/ops/step.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status BatchOutputs::Queue(const StepContext& context, const Spec& spec, int64_t num_rows) {
  char* const rows = host_rows_ + queued_bytes_;
  const int64_t bytes = num_rows * spec.row_bytes();
  if (bytes > 0) {
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(rows, next_rows(), static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, context.stream()));
  }
  queued_.push_back({.spec = spec, .rows = rows});
  queued_bytes_ += AlignedBytes(bytes);
  return absl::OkStatus();
}

}  // namespace voxserve
