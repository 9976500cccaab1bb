#pragma once

// From clouds to the matrix that a network reads: which fields, scaled how, which points are no numbers, and where the
// points of older sweeps stand.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/executor/cloud_part.h"
#include "engine/model/graph.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/core/thread_pool.h"
#include "kernels/points/decode_points.h"

namespace voxserve {

// INVALID_ARGUMENT (MISSING_FIELD) naming every axis, and every feature without a default, that the cloud lacks. The
// age feature, if any, does not come from the cloud.
absl::Status CheckFields(const VoxelizeOp& op, const PointCloud& cloud, std::string_view age_feature = {});

// Whether the task is one for the network: the fields of every cloud; and of sweeps, INVALID_ARGUMENT (BAD_SWEEPS)
// for a network whose axes are not x, y and z, or that has no such age feature (naming those that it has). A sample of
// its points: CheckSample.
absl::Status CheckInput(const VoxelizeOp& op, const InferTask& task);

// Columns of the matrix: the axes as the cloud has them, then the features as the network reads them.
inline int32_t NumPointColumns(const VoxelizeOp& op) {
  return static_cast<int32_t>(op.axes.size() + op.features.size());
}

// points: that matrix, on any device.
inline kernels::ConstRows PointRows(const VoxelizeOp& op, const void* points, int64_t num_points) {
  return kernels::ConstRows::Packed(points, kernels::DType::kFloat32, num_points, NumPointColumns(op));
}

// points: [num_points, NumPointColumns]; is_valid: [num_points], 0 where a column is NaN or infinite. The task has
// passed CheckInput. A sweep is read into the newest one's coordinates (tensor/sweep.h); features that are x, y or z
// follow.
void ReadPoints(const VoxelizeOp& op, const CloudPart& part, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool);

// How a GPU makes the same of the cloud's bytes; where the bytes, the matrix and the mask lie is left to the caller.
kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const CloudPart& part);

}  // namespace voxserve
