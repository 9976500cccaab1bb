#include "engine/ops/output.h"

#include <cstring>
#include <utility>

#include "kernels/boxes/box_rows.h"

namespace voxserve {

bool IsAnswered(const OutputRequest& request, OutputKind kind) {
  if (!request.output->status.ok()) return false;
  // An empty image has a head's biases in it, which are no objects.
  if (kind == OutputKind::kBoxes) return request.output->counts.voxels > 0;
  return kind == OutputKind::kLabels || request.return_scores;
}

char* RoomForOutput(OutputKind kind, int64_t num_rows, int64_t row_bytes, SampleOutput& output) {
  const auto bytes = static_cast<size_t>(num_rows * row_bytes);
  if (kind == OutputKind::kLabels) {
    output.labels.resize(bytes);
    return reinterpret_cast<char*>(output.labels.data());
  }
  output.scores.resize(bytes / sizeof(float));
  return reinterpret_cast<char*>(output.scores.data());
}

void SetBoxes(const float* rows, int64_t num_rows, int64_t pitch, SampleOutput& output) {
  output.boxes.clear();
  for (int64_t i = 0; i < num_rows; ++i) {
    const float* row = rows + i * pitch;
    if (row[kernels::kBoxScore] == kernels::kNoBox) continue;
    output.boxes.push_back({.class_id = static_cast<int32_t>(row[kernels::kBoxClass]),
                            .score = row[kernels::kBoxScore],
                            .x = row[kernels::kBoxX],
                            .y = row[kernels::kBoxY],
                            .z = row[kernels::kBoxZ],
                            .length = row[kernels::kBoxLength],
                            .width = row[kernels::kBoxWidth],
                            .height = row[kernels::kBoxHeight],
                            .yaw = row[kernels::kBoxYaw],
                            .velocity_x = row[kernels::kBoxVelocityX],
                            .velocity_y = row[kernels::kBoxVelocityY]});
  }
}

void TakeOutputs(const StepContext& context) {
  for (const QueuedOutput& queued : context.queued_outputs) {
    int64_t end = 0;
    for (const OutputRequest& request : context.requests) {
      const bool is_boxes = queued.kind == OutputKind::kBoxes;
      const int64_t begin = std::exchange(end, end + (is_boxes ? queued.rows_per_sample : request.num_answers));
      if (!IsAnswered(request, queued.kind)) continue;
      const char* const rows = queued.rows + begin * queued.row_bytes;
      if (is_boxes) {
        SetBoxes(reinterpret_cast<const float*>(rows), end - begin,
                 queued.row_bytes / static_cast<int64_t>(sizeof(float)), *request.output);
        continue;
      }
      char* const to = RoomForOutput(queued.kind, end - begin, queued.row_bytes, *request.output);
      if (begin < end) std::memcpy(to, rows, static_cast<size_t>((end - begin) * queued.row_bytes));
    }
  }
}

}  // namespace voxserve
