#include "engine/ops/image/max_pool2d.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status MaxPool2dStep::Run(const StepContext& context) const {
  const kernels::MaxPool2dParams params{.geometry = options_.geometry,
                                        .num_images = context.num_samples(),
                                        .in_rows = options_.in_rows,
                                        .in_columns = options_.in_columns,
                                        .in = context.At(options_.in),
                                        .out = context.At(options_.out)};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::MaxPool2d(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::MaxPool2d(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
