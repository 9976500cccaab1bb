#include "engine/ops/rows/multiply.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/multiply.h"

namespace voxserve {

absl::Status MultiplyStep::Run(const StepContext& context) const {
  const kernels::MultiplyRowsParams params{
      .in = context.At(options_.in), .factor = context.At(options_.factor), .out = context.At(options_.out)};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::MultiplyRows(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::MultiplyRows(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
