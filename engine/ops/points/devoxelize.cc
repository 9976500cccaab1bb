#include "engine/ops/points/devoxelize.h"

#include <algorithm>

#include "engine/ops/launch.h"
#include "kernels/points/devoxelize.h"

namespace voxserve {

kernels::InterpolationWeightsParams InterpolationWeightsStep::ParamsIn(const StepContext& context) const {
  const kernels::Rows out = context.At(options_.out);
  const bool is_of_points = options_.position_level == kPointLevel;
  kernels::InterpolationWeightsParams params{
      .dimension = options_.dimension,
      .num_positions = out.capacity,
      .device_num_positions = out.num_rows,
      .ratio = options_.ratio,
      .position_keys = context.Keys(is_of_points ? 0 : options_.position_level),
      .rounding = options_.rounding,
      .keys = context.Keys(options_.level),
      .num_sites = (*context.num_sites)[static_cast<size_t>(options_.level)],
      .device_num_sites = context.DeviceNumSites(options_.level),
      .neighbours = static_cast<int32_t*>(out.data),
      .weights = out.data == nullptr ? nullptr : out.floats() + (1 << options_.dimension),
      .pitch = out.pitch,
      .workspace = context.scratch};
  std::copy(options_.voxel_size.begin(), options_.voxel_size.end(), params.voxel_size);
  std::copy(options_.shift.begin(), options_.shift.end(), params.shift);
  if (is_of_points) {
    params.point_to_voxel = context.PointToVoxel();
    params.axes = context.points;
  }
  return params;
}

absl::Status InterpolationWeightsStep::Run(const StepContext& context) const {
  return LAUNCH(context, ParamsIn(context), InterpolationWeights);
}

size_t InterpolationWeightsStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::InterpolationWeightsWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

absl::Status DevoxelizeStep::Run(const StepContext& context) const {
  kernels::DevoxelizeParams params{
      .in = context.At(options_.in), .out = context.At(options_.out), .epilogue = options_.epilogue.In(context)};
  if (options_.weights.buffer < 0) {
    params.neighbours = context.PointToVoxel();
  } else {
    const kernels::Rows weights = context.At(options_.weights);
    params.num_neighbours = weights.channels / 2;
    params.neighbours = static_cast<const int32_t*>(weights.data);
    params.weights = weights.floats() + params.num_neighbours;
    params.neighbour_pitch = weights.pitch;
  }
  return LAUNCH(context, params, Devoxelize);
}

}  // namespace voxserve
