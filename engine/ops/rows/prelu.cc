#include "engine/ops/rows/prelu.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/prelu.h"

namespace voxserve {

absl::Status PReluStep::Run(const StepContext& context) const {
  const kernels::PReluParams params{
      .in = context.At(options_.in), .slopes = options_.slopes.floats(), .out = context.At(options_.out)};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::PRelu(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::PRelu(params, *context.execution->pool);
  return absl::OkStatus();
}

absl::Status PReluStep::Upload(WeightUploader& uploader) { return uploader.Upload(options_.slopes, DType::kFloat32); }

}  // namespace voxserve
