#include "engine/ops/image/from_dense.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status FromDenseStep::Run(const StepContext& context) const {
  const kernels::CellsToSitesParams params{.grid = options_.grid,
                                           .keys = context.Keys(options_.level),
                                           .in = context.At(options_.in),
                                           .out = context.At(options_.out)};
  return LAUNCH(context, params, CellsToSites);
}

}  // namespace voxserve
