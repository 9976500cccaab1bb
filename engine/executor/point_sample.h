#pragma once

// Sampling of farthest points in a batch, on any device: it checks the request, lays out how many points each sample
// selects, and writes the selection into the answers.

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

// Returns INVALID_ARGUMENT (BAD_SAMPLE) if the network or the cloud cannot be sampled so: zero points, more points than
// the cloud has, a start that is not one of its points, several sweeps, a network whose axes do not begin with x, y
// and z, or a network that samples for itself. It does not check that enough points are valid: TakeSampledPoints does.
absl::Status CheckSample(const VoxelizeOp& op, const InferTask& task);

// Lays out how many points each sample selects. point_begin: [samples + 1]; samples without points select none.
void LayOutSampling(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    PointSampling& sampling);

// Writes the selected points and the counts of the others into the answers, after TakeVoxelCounts. A sample with fewer
// valid points than it was to select gets INVALID_ARGUMENT (BAD_SAMPLE).
void TakeSampledPoints(const PointSampling& sampling, const BatchCounts& counted, BatchTasks tasks,
                       const std::vector<int64_t>& point_begin, BatchOutput& output);

}  // namespace voxserve
