#include "engine/ops/points/point_features.h"

#include "engine/ops/launch.h"
#include "kernels/points/point_features.h"

namespace voxserve {

absl::Status PointFeaturesStep::Run(const StepContext& context) const {
  const kernels::Rows out = context.At(out_);
  const kernels::PointFeaturesParams params{.point_to_voxel = context.PointToVoxel(),
                                            .features = context.points.Columns(first_column_, out.channels),
                                            .out = out};
  return LAUNCH(context, params, PointFeatures);
}

}  // namespace voxserve
