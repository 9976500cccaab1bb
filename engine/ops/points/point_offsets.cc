#include "engine/ops/points/point_offsets.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "kernels/core/scratch.h"
#include "kernels/points/voxel_features.h"

namespace voxserve {
namespace {

constexpr int64_t kMeansPitch = kernels::kMaxDimension;  // rows of 16 bytes

}  // namespace

kernels::PointOffsetsParams PointOffsetsStep::ParamsIn(const StepContext& context) const {
  kernels::PointOffsetsParams params{.dimension = options_.dimension,
                                     .point_to_voxel = context.PointToVoxel(),
                                     .axes = context.points.Columns(0, options_.dimension),
                                     .out = context.At(options_.out)};
  if (!options_.is_from_mean) params.voxel_keys = context.Keys(0);
  std::copy(options_.voxel_size.begin(), options_.voxel_size.end(), params.voxel_size);
  std::copy(options_.first_center.begin(), options_.first_center.end(), params.first_center);
  return params;
}

size_t PointOffsetsStep::MeansBytes(const StepContext& context) const {
  return options_.is_from_mean ? static_cast<size_t>((*context.num_sites)[0] * kMeansPitch) * sizeof(float) : 0;
}

kernels::Rows PointOffsetsStep::MeansIn(const StepContext& context, float* data) const {
  return {.data = data,
          .channels = options_.dimension,
          .pitch = kMeansPitch,
          .capacity = (*context.num_sites)[0],
          .num_rows = context.DeviceNumSites(0)};
}

absl::Status PointOffsetsStep::Run(const StepContext& context) const {
  kernels::PointOffsetsParams params = ParamsIn(context);
  kernels::ScratchVector<float> values(context.execution->memory.get());
  if (options_.is_from_mean) {
    if (context.cuda() == nullptr) values.resize(MeansBytes(context) / sizeof(float));
    auto* const data = context.cuda() == nullptr ? values.data() : static_cast<float*>(context.scratch);
    const kernels::VoxelFeaturesParams means{.reduce = kernels::VoxelReduce::kMean,
                                             .max_points_per_voxel = options_.max_points,
                                             .features = params.axes,
                                             .sorted_points = context.SortedPoints(),
                                             .voxel_begin = context.VoxelBegin(),
                                             .out = MeansIn(context, data)};
    RETURN_IF_ERROR(LAUNCH(context, means, VoxelFeatures));
    params.means = means.out;
  }
  return LAUNCH(context, params, PointOffsets);
}

size_t PointOffsetsStep::ScratchBytes(const StepContext& context) const { return MeansBytes(context); }

}  // namespace voxserve
