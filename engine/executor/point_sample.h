#pragma once

// These functions serve the sampling of farthest points in a batch, on any device. They check the request, lay out how
// many points each sample selects, and write the selection into the answers.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/point_sampling.h"
#include "engine/model/graph.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

// Returns INVALID_ARGUMENT (BAD_SAMPLE) if the task asks for a sample that is not possible: zero points, more than
// 65,536 points, more points than the cloud has, a start that is not one of the cloud's points, several sweeps, a
// network whose axes do not begin with x, y and z, or a network that samples points itself. TakeSampledPoints checks
// that enough points are valid.
absl::Status CheckSample(const VoxelizeOp& op, const InferTask& task);

// Lays out how many points each sample selects. point_begin: [samples + 1]; samples without points select none.
void LayOutSampling(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    PointSampling& sampling);

// Writes into the answers the points that requests selected, and how many points a restricted network did not see. Call
// it after TakeVoxelCounts. If a request selects more points than its cloud has valid points, the sample's status
// becomes INVALID_ARGUMENT (BAD_SAMPLE). A network that samples points itself then sees all valid points.
void TakeSampledPoints(const PointSampling& sampling, const BatchCounts& counted, BatchTasks tasks,
                       const std::vector<int64_t>& point_begin, BatchReport& output);

}  // namespace voxserve
