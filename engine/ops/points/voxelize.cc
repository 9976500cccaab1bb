#include "engine/ops/points/voxelize.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status VoxelFeaturesStep::Run(const StepContext& context) const {
  const kernels::Rows out = context.At(options_.out);
  kernels::VoxelFeaturesParams params{.reduce = options_.reduce,
                                      .max_points_per_voxel = options_.max_points_per_voxel,
                                      .features = context.points.Columns(options_.first_column, out.channels),
                                      .out = out};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      params.sorted_points = context.device_geometry->sorted_points();
      params.voxel_begin = context.device_geometry->voxel_begin();
      RETURN_IF_CUDA_ERROR(kernels::cuda::VoxelFeatures(params, context.stream()));
      return absl::OkStatus();
    }
  }
  params.sorted_points = context.geometry->sorted_points.data();
  params.voxel_begin = context.geometry->voxel_begin.data();
  kernels::cpu::VoxelFeatures(params, *context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
