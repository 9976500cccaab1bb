#pragma once

// From clouds to the matrix that a network reads: which fields, scaled how, and which points are no numbers.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/graph/graph.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/decode_points.h"
#include "kernels/thread_pool.h"

namespace voxserve {

// INVALID_ARGUMENT (MISSING_FIELD) naming every axis, and every feature without a default, that the cloud lacks.
absl::Status CheckFields(const VoxelizeOp& op, const PointCloud& cloud);

// Columns of the matrix: the axes as the cloud has them, then the features as the network reads them.
inline int64_t NumPointColumns(const VoxelizeOp& op) {
  return static_cast<int64_t>(op.axes.size() + op.features.size());
}

// points: [num_points, NumPointColumns]; is_valid: [num_points], 0 where a column is NaN or infinite. The cloud has
// passed CheckFields.
void ReadPoints(const VoxelizeOp& op, const PointCloud& cloud, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool);

// How a GPU makes the same of the cloud's bytes; where the bytes, the matrix and the mask lie is left to the caller.
kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const PointCloud& cloud);

}  // namespace voxserve
