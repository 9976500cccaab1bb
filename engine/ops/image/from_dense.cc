#include "engine/ops/image/from_dense.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status FromDenseStep::Run(const StepContext& context) const {
  const kernels::CellsToSitesParams params{.grid = options_.grid,
                                           .keys = context.Keys(options_.level),
                                           .in = context.At(options_.in),
                                           .out = context.At(options_.out)};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::CellsToSites(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::CellsToSites(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
