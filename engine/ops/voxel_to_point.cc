#include "engine/ops/voxel_to_point.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/voxel_to_point.h"

namespace voxserve {
absl::Status VoxelToPointStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const Tensor voxels = context.At(in_);
  const std::vector<int64_t>& point_begin = *context.point_begin;
  for (size_t i = 0; i < context.requests.size(); ++i) {
    SampleOutput& output = *context.requests[i].output;
    if (!IsAnswered(context.requests[i], kind_)) continue;
    const int64_t num_points = context.requests[i].num_answers;
    const int64_t row_bytes = voxels.channels * SizeOf(voxels.dtype);
    kernels::cpu::VoxelToPoint({.num_points = num_points,
                                .point_to_voxel = context.geometry->point_to_voxel.data() + point_begin[i],
                                .voxels = voxels.data,
                                .voxel_pitch_bytes = voxels.pitch_bytes(),
                                .row_bytes = row_bytes,
                                .fill_label = kind_ == OutputKind::kLabels ? context.ignore_label : 0,
                                .points = RoomForOutput(kind_, num_points, row_bytes, output)},
                               *context.execution->pool);
  }
  return absl::OkStatus();
}

int64_t VoxelToPointStep::OutputBytes(const StepContext& context) const {
  const Tensor voxels = context.At(in_);
  return AlignedOutputBytes(context.num_answers() * voxels.channels * SizeOf(voxels.dtype));
}

}  // namespace voxserve
