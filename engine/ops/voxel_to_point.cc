#include "engine/ops/voxel_to_point.h"

#include <cstring>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/voxel_to_point.h"

namespace voxserve {
namespace {

// Where a sample's rows go.
char* MakeRoom(bool is_labels, int64_t num_points, int64_t row_bytes, SampleOutput& output) {
  const auto bytes = static_cast<size_t>(num_points * row_bytes);
  if (is_labels) {
    output.labels.resize(bytes);
    return reinterpret_cast<char*>(output.labels.data());
  }
  output.scores.resize(bytes / sizeof(float));
  return reinterpret_cast<char*>(output.scores.data());
}

}  // namespace

absl::Status VoxelToPointStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const Tensor voxels = context.At(in_);
  const std::vector<int64_t>& point_begin = *context.point_begin;
  for (size_t i = 0; i < context.requests.size(); ++i) {
    SampleOutput& output = *context.requests[i].output;
    if (!output.status.ok() || (!is_labels_ && !context.requests[i].return_scores)) continue;
    const int64_t num_points = context.requests[i].num_answers;
    const int64_t row_bytes = voxels.channels * SizeOf(voxels.dtype);
    kernels::cpu::VoxelToPoint({.num_points = num_points,
                                .point_to_voxel = context.geometry->point_to_voxel.data() + point_begin[i],
                                .voxels = voxels.data,
                                .voxel_pitch_bytes = voxels.pitch_bytes(),
                                .row_bytes = row_bytes,
                                .fill_label = is_labels_ ? context.ignore_label : 0,
                                .points = MakeRoom(is_labels_, num_points, row_bytes, output)},
                               *context.execution->pool);
  }
  return absl::OkStatus();
}

int64_t VoxelToPointStep::OutputBytes(const StepContext& context) const {
  const Tensor voxels = context.At(in_);
  return AlignedBytes(context.num_answers() * voxels.channels * SizeOf(voxels.dtype));
}

void TakeOutput(const QueuedOutput& queued, int64_t begin, int64_t end, SampleOutput& output) {
  char* const to = MakeRoom(queued.is_labels, end - begin, queued.row_bytes, output);
  if (begin == end) return;
  std::memcpy(to, queued.rows + begin * queued.row_bytes, static_cast<size_t>((end - begin) * queued.row_bytes));
}

}  // namespace voxserve
