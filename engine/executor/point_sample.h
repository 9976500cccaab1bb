#pragma once

// Farthest points of a batch's samples, whatever the device: who selects how many, and what the answers say of it.

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

// INVALID_ARGUMENT (BAD_SAMPLE) for a sample that the network or the cloud cannot have: of no points or more than the
// cloud has, with a start that is none of its points, of several sweeps, of a network whose axes do not begin with x, y
// and z or that samples for itself. Whether that many points are valid is known once they are read.
absl::Status CheckSample(const VoxelizeOp& op, const InferTask& task);

// Lays out what the batch's samples select. point_begin: [samples + 1]; samples without points select none.
void LayOutSampling(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    PointSampling& sampling);

// Selected points, and what became of the others, after TakeVoxelCounts. INVALID_ARGUMENT (BAD_SAMPLE) for a sample
// that was to select more points than it has valid ones.
void TakeSampledPoints(const PointSampling& sampling, const BatchCounts& counted, BatchTasks tasks,
                       const std::vector<int64_t>& point_begin, BatchOutput& output);

}  // namespace voxserve
