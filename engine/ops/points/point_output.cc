#include "engine/ops/points/point_output.h"

#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status PointOutputStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const kernels::Rows in = context.At(in_);
  for (size_t i = 0; i < context.requests.size(); ++i) {
    SampleOutput& output = *context.requests[i].output;
    if (!IsAnswered(context.requests[i], kind_)) continue;
    const int64_t num_points = context.requests[i].num_answers;
    char* const points = RoomForOutput(kind_, num_points, in.channels * SizeOf(in.dtype), output);
    kernels::cpu::VoxelToPoint(
        ParamsOf(context, context.geometry->point_to_voxel.data(), (*context.point_begin)[i], num_points, points),
        *context.execution->pool);
  }
  return absl::OkStatus();
}

int64_t PointOutputStep::OutputBytes(const StepContext& context) const {
  const kernels::Rows in = context.At(in_);
  return AlignedBytes(context.num_answers() * in.channels * SizeOf(in.dtype));
}

kernels::VoxelToPointParams PointOutputStep::ParamsOf(const StepContext& context, const int32_t* point_to_voxel,
                                                      int64_t begin, int64_t num_points, void* points) const {
  const kernels::Rows in = context.At(in_);
  const bool is_on_points = (*context.buffers)[static_cast<size_t>(in_.buffer)].level == kPointLevel;
  return {.num_points = num_points,
          .point_to_voxel = point_to_voxel + begin,
          .rows_are_points = is_on_points,
          .rows = static_cast<const char*>(in.data) + (is_on_points ? begin * in.pitch_bytes() : 0),
          .pitch_bytes = in.pitch_bytes(),
          .row_bytes = in.channels * SizeOf(in.dtype),
          .fill_label = kind_ == OutputKind::kLabels ? context.ignore_label : 0,
          .points = points};
}

}  // namespace voxserve
