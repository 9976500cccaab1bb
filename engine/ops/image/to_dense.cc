#include "engine/ops/image/to_dense.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status ToDenseStep::Run(const StepContext& context) const {
  const kernels::SitesToCellsParams params{.grid = options_.grid,
                                           .num_samples = context.num_samples(),
                                           .keys = context.Keys(options_.level),
                                           .depth = options_.depth,
                                           .in = context.At(options_.in),
                                           .out = context.At(options_.out),
                                           .workspace = context.scratch};
  return LAUNCH(context, params, SitesToCells);
}

size_t ToDenseStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::SitesToCellsWorkspaceBytes(options_.grid, context.num_samples());
  }
  return 0;
}

}  // namespace voxserve
