#include "engine/ops/rows/argmax.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/argmax.h"

namespace voxserve {

absl::Status ArgmaxStep::Run(const StepContext& context) const {
  const kernels::Rows labels = context.At(options_.out);
  if (options_.classifier != nullptr) return options_.classifier->Label(context, labels);
  const kernels::ArgmaxParams params{
      .in = context.At(options_.in), .labels = labels, .not_finite_label = context.ignore_label};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::Argmax(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Argmax(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
