#include "engine/ops/points/point_output.h"

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/ops/cpu_output_collector.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status PointOutputStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  CpuOutputCollector& outputs = *context.cpu_outputs;
  const OutputCollector::Spec spec = SpecOf(context.At(in_));
  for (size_t i = 0; i < outputs.num_samples(); ++i) {
    if (!outputs.IsWanted(i, spec)) continue;
    ASSIGN_OR_RETURN(char* const rows, outputs.AddRows(i, spec));
    kernels::cpu::VoxelToPoint(ParamsOf(context, context.geometry->point_to_voxel.data(), (*context.point_begin)[i],
                                        outputs.num_answers(i), rows),
                               *context.execution->pool);
  }
  return absl::OkStatus();
}

int64_t PointOutputStep::OutputBytes(const StepContext& context) const {
  const int64_t num_answers = context.outputs() == nullptr ? 0 : context.outputs()->num_answers();
  const int64_t num_rows = std::max(num_answers, context.captured_points);
  return AlignedBytes(num_rows * SpecOf(context.At(in_)).row_bytes());
}

OutputCollector::Spec PointOutputStep::SpecOf(const kernels::Rows& in) const {
  return {.name = output_, .dtype = in.dtype, .columns = in.channels, .is_for_all = is_for_all, .tensor = tensor_};
}

kernels::VoxelToPointParams PointOutputStep::ParamsOf(const StepContext& context, const int32_t* point_to_voxel,
                                                      int64_t begin, int64_t num_points, void* points) const {
  const kernels::Rows in = context.At(in_);
  const bool is_on_points = (*context.buffers)[static_cast<size_t>(in_.buffer)].level == kPointLevel;
  kernels::VoxelToPointParams params{.point_to_voxel = point_to_voxel + begin,
                                     .rows_are_points = is_on_points,
                                     .rows = is_on_points ? in.RowRange(begin, begin + num_points) : in,
                                     .keeps_not_finite = tensor_ >= 0,
                                     .points = kernels::Rows::Packed(points, in.dtype, num_points, in.channels)};
  if (output_ == NamedOutput::kLabels) {
    params.fill_label = context.ignore_label;
    params.num_filled = context.outputs()->not_finite_points();
    params.point_begin = context.device_point_begin;
    params.num_samples = context.num_samples();
    params.first_point = begin;
  }
  return params;
}

}  // namespace voxserve
