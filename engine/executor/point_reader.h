#pragma once

// These functions read clouds into the matrix that a network reads. They check the fields, scale features, mark points
// that are not finite, and transform the points of older sweeps into the coordinates of the newest sweep. Any thread
// may call them.

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

// Returns INVALID_ARGUMENT (MISSING_FIELD) if the cloud lacks an axis or a feature without a default; the message names
// all of them. The age feature, if any, does not come from the cloud. An empty cloud may have no fields at all.
absl::Status CheckFields(const VoxelizeOp& op, const PointCloud& cloud, std::string_view age_feature = {});

// Checks that the network can run the task: the fields of every cloud, and the sample (CheckSample). Returns
// INVALID_ARGUMENT: the errors of CheckFields and CheckSample, and for several sweeps BAD_SWEEPS if the network's axes
// are not x, y and z, or if it has no feature task.age_feature (the message lists its features).
absl::Status CheckInput(const VoxelizeOp& op, const InferTask& task);

// Returns the columns of the matrix: one for each axis, unscaled, then one for each feature, scaled.
inline int32_t NumPointColumns(const VoxelizeOp& op) {
  return static_cast<int32_t>(op.axes.size() + op.features.size());
}

// Returns a view of the matrix `points`, [num_points, NumPointColumns]. points: on any device.
inline kernels::ConstRows PointRows(const VoxelizeOp& op, const void* points, int64_t num_points) {
  return kernels::ConstRows::Packed(points, kernels::DType::kFloat32, num_points, NumPointColumns(op));
}

// Reads one cloud. points: [num_points, NumPointColumns]; is_valid: [num_points], 0 where a column is NaN or infinite.
// The cloud's task has passed CheckInput. The points of an older sweep are transformed into the newest sweep's
// coordinates (tensor/sweep.h). A feature that repeats x, y or z gets the transformed coordinate.
void ReadPoints(const VoxelizeOp& op, const CloudPart& part, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool);

// Returns the parameters by which a GPU decodes the cloud's bytes to the same matrix. The caller sets the addresses of
// the bytes, the matrix and the mask.
kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const CloudPart& part);

}  // namespace voxserve
