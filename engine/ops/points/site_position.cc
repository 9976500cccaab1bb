#include "engine/ops/points/site_position.h"

#include <algorithm>

#include "engine/ops/launch.h"
#include "kernels/core/scratch.h"
#include "kernels/image/sites/voxel_positions.h"

namespace voxserve {

absl::Status SitePositionStep::Run(const StepContext& context) const {
  kernels::VoxelPositionsParams params{.is_mean = options_.is_mean,
                                       .axes = context.points.Columns(0, options_.out.channels),
                                       .sorted_points = context.SortedPoints(),
                                       .voxel_begin = context.VoxelBegin(),
                                       .out = context.At(options_.out)};
  std::copy(options_.scale.begin(), options_.scale.end(), params.scale);
  std::copy(options_.shift.begin(), options_.shift.end(), params.shift);
  kernels::ScratchVector<float> minima(context.execution->memory.get());
  if (options_.is_from_minimum) {
    if (context.cuda() == nullptr) minima.resize(ScratchBytes(context) / sizeof(float));
    params.minima = context.cuda() == nullptr ? minima.data() : static_cast<float*>(context.scratch);
    params.point_to_voxel = context.PointToVoxel();
    params.point_begin = context.device_point_begin;
    params.num_samples = context.num_samples();
  }
  return LAUNCH(context, params, VoxelPositions);
}

size_t SitePositionStep::ScratchBytes(const StepContext& context) const {
  return options_.is_from_minimum ? static_cast<size_t>(context.num_samples()) * kernels::kMaxDimension * sizeof(float)
                                  : 0;
}

}  // namespace voxserve
