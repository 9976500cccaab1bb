#include "engine/ops/voxelize.h"

namespace voxserve {

absl::Status VoxelFeaturesStep::Run(const StepContext& context) const {
  const Tensor out = context.At(options_.out);
  kernels::cpu::VoxelFeatures({.reduce = options_.reduce,
                               .max_points_per_voxel = options_.max_points_per_voxel,
                               .num_voxels = out.rows,
                               .num_channels = out.channels,
                               .features = context.points + options_.first_column,
                               .features_pitch = context.points_pitch,
                               .sorted_points = context.geometry->sorted_points.data(),
                               .voxel_begin = context.geometry->voxel_begin.data(),
                               .out = out.floats(),
                               .out_pitch = out.pitch},
                              *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
