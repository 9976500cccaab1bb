#pragma once

// Reads clouds into the matrix that a network reads: checks the fields, scales them, marks points that are not finite,
// and transforms the points of older sweeps.

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

// Checks that the network can run the task: the fields of every cloud, and the sample (CheckSample). For sweeps,
// INVALID_ARGUMENT (BAD_SWEEPS) if the network's axes are not x, y and z, or if it has no such age feature (the message
// lists the features that it has).
absl::Status CheckInput(const VoxelizeOp& op, const InferTask& task);

// Returns the columns of the matrix: one for each axis, unscaled, then one for each feature, scaled.
inline int32_t NumPointColumns(const VoxelizeOp& op) {
  return static_cast<int32_t>(op.axes.size() + op.features.size());
}

// Returns a view of that matrix. points: on any device.
inline kernels::ConstRows PointRows(const VoxelizeOp& op, const void* points, int64_t num_points) {
  return kernels::ConstRows::Packed(points, kernels::DType::kFloat32, num_points, NumPointColumns(op));
}

// Reads one cloud. points: [num_points, NumPointColumns]; is_valid: [num_points], 0 where a column is NaN or infinite.
// The task has passed CheckInput. The points of an older sweep are transformed into the newest sweep's coordinates
// (tensor/sweep.h), and features that are x, y or z with them.
void ReadPoints(const VoxelizeOp& op, const CloudPart& part, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool);

// Returns the parameters by which a GPU decodes the cloud's bytes to the same matrix. The caller sets where the bytes,
// the matrix and the mask lie.
kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const CloudPart& part);

}  // namespace voxserve
