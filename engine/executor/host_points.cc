#include "engine/executor/host_points.h"

#include "engine/base/status_macros.h"
#include "engine/executor/cloud_part.h"
#include "engine/executor/point_reader.h"

namespace voxserve {

absl::Status HostPoints::Read(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                              ExecutionContext& context) {
  const int64_t num_points = point_begin.back();
  const int64_t columns = NumPointColumns(op);
  const int64_t matrix_bytes = num_points * columns * static_cast<int64_t>(sizeof(float));
  RETURN_IF_ERROR(context.input.Reserve(matrix_bytes));
  kernels::Renew(is_valid_, static_cast<size_t>(num_points));
  needed_bytes_ = matrix_bytes + num_points;
  auto* const points = reinterpret_cast<float*>(context.input.data());
  points_ = points;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (point_begin[i] == point_begin[i + 1]) continue;
    int64_t begin = point_begin[i];
    for (const CloudPart& part : PartsOf(*tasks[i])) {
      ReadPoints(op, part, points + begin * columns, is_valid_.data() + begin, *context.pool);
      begin += part.num_points();
    }
  }
  return absl::OkStatus();
}

}  // namespace voxserve
