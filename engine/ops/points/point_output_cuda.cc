#include "engine/base/status_macros.h"
#include "engine/ops/points/point_output.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

struct PointRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Those of the batch's points that are answered, in order. One range where every point is.
std::vector<PointRange> AnsweredPoints(const StepContext& context) {
  std::vector<PointRange> ranges;
  for (size_t i = 0; i < context.requests.size(); ++i) {
    const int64_t begin = (*context.point_begin)[i];
    const int64_t end = begin + context.requests[i].num_answers;
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
  const kernels::Rows in = context.At(in_);
  const int64_t row_bytes = in.channels * SizeOf(in.dtype);
  char* const rows = NextOutputRows(context);
  int64_t num_rows = 0;  // that have been written
  for (const PointRange& points : AnsweredPoints(context)) {
    RETURN_IF_CUDA_ERROR(
        kernels::cuda::VoxelToPoint(ParamsOf(context, context.device_geometry->point_to_voxel(), points.begin,
                                             points.end - points.begin, rows + num_rows * row_bytes),
                                    context.stream()));
    num_rows += points.end - points.begin;
  }
  return QueueOutput(context, {.kind = kind_, .row_bytes = row_bytes, .num_rows = num_rows});
}

}  // namespace voxserve
