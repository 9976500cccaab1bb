#include "engine/base/status_macros.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/ops/points/point_output.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

struct PointRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the ranges of the batch's points that get an answer, in order. If all points get one, it is a single range.
// In a captured batch that range has as many points as there may be.
std::vector<PointRange> AnsweredPoints(const StepContext& context) {
  if (context.captured_points > 0) return {{.begin = 0, .end = context.captured_points}};
  std::vector<PointRange> ranges;
  for (size_t i = 0; i < context.cuda_outputs->num_samples(); ++i) {
    const int64_t begin = (*context.point_begin)[i];
    const int64_t end = begin + context.cuda_outputs->num_answers(i);
    if (begin == end) continue;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

}  // namespace

absl::Status PointOutputStep::RunOnCuda(const StepContext& context) const {
  const OutputCollector::Spec spec = SpecOf(context.At(in_));
  const bool are_labels = output_ == NamedOutput::kLabels;
  char* const rows = are_labels ? context.cuda_outputs->next_host_rows() : context.cuda_outputs->next_rows();
  int64_t num_rows = 0;  // rows written so far
  for (const PointRange& points : AnsweredPoints(context)) {
    kernels::VoxelToPointParams params = ParamsOf(context, context.device_geometry->point_to_voxel(), points.begin,
                                                  points.end - points.begin, rows + num_rows * spec.row_bytes());
    params.points.num_rows = context.DeviceNumPoints();
    RETURN_IF_CUDA_ERROR(kernels::cuda::VoxelToPoint(params, context.stream()));
    num_rows += points.end - points.begin;
  }
  if (!are_labels) return context.cuda_outputs->Queue(context, spec, num_rows);
  context.cuda_outputs->AddWritten(spec, num_rows);
  return absl::OkStatus();
}

}  // namespace voxserve
