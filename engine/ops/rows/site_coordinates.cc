#include "engine/ops/rows/site_coordinates.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status SiteCoordinatesStep::Run(const StepContext& context) const {
  kernels::SiteCoordinatesParams params = parameters_;
  params.keys = context.Keys(level_);
  params.out = context.At(out_);
  return LAUNCH(context, params, SiteCoordinates);
}

}  // namespace voxserve
