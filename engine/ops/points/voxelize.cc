#include "engine/ops/points/voxelize.h"

#include "engine/ops/launch.h"

namespace voxserve {

absl::Status VoxelFeaturesStep::Run(const StepContext& context) const {
  const kernels::Rows out = context.At(options_.out);
  const kernels::VoxelFeaturesParams params{.reduce = options_.reduce,
                                            .max_points_per_voxel = options_.max_points_per_voxel,
                                            .features = context.points.Columns(options_.first_column, out.channels),
                                            .sorted_points = context.SortedPoints(),
                                            .voxel_begin = context.VoxelBegin(),
                                            .out = out};
  return LAUNCH(context, params, VoxelFeatures);
}

}  // namespace voxserve
