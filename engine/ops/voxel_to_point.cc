#include "engine/ops/voxel_to_point.h"

#include "kernels/voxel_to_point.h"

namespace voxserve {

absl::Status VoxelToPointStep::Run(const StepContext& context) const {
  const Tensor voxels = context.At(in_);
  const auto ignore_label = static_cast<uint16_t>(context.ignore_label);  // its first byte is a uint8's
  const std::vector<float> no_scores(static_cast<size_t>(voxels.channels), 0.0f);
  const std::vector<int64_t>& point_begin = *context.point_begin;
  for (size_t i = 0; i < context.requests.size(); ++i) {
    SampleOutput& output = *context.requests[i].output;
    if (!output.status.ok() || (!is_labels_ && !context.requests[i].return_scores)) continue;
    const int64_t num_points = point_begin[i + 1] - point_begin[i];
    const int64_t row_bytes = voxels.channels * SizeOf(voxels.dtype);
    void* points = nullptr;
    if (is_labels_) {
      output.labels.resize(static_cast<size_t>(num_points * row_bytes));
      points = output.labels.data();
    } else {
      output.scores.resize(static_cast<size_t>(num_points * voxels.channels));
      points = output.scores.data();
    }
    kernels::cpu::VoxelToPoint({.num_points = num_points,
                                .point_to_voxel = context.geometry->point_to_voxel.data() + point_begin[i],
                                .voxels = voxels.data,
                                .voxel_pitch_bytes = voxels.pitch_bytes(),
                                .row_bytes = row_bytes,
                                .fill = is_labels_ ? static_cast<const void*>(&ignore_label) : no_scores.data(),
                                .points = points},
                               *context.execution->pool);
  }
  return absl::OkStatus();
}

}  // namespace voxserve
