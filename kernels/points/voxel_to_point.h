#pragma once

// VoxelToPoint makes the answers by point: every point gets its voxel's row, or its own.
//
// - Points without a voxel get the fill label, or scores of 0.
// - Labels: the fill label may stand in the rows too, where the scores were not finite (argmax.h). Points that get it
//   from there are counted, sample by sample.
// - Scores: points whose row has a value that is NaN or infinite get scores of 0, unless those are kept.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct VoxelToPointParams {
  const int32_t* point_to_voxel = nullptr;  // [points] row of the voxel; negative: none
  bool rows_are_points = false;             // else voxels
  ConstRows rows;                           // labels, one channel of uint8 or uint16; scores, float32
  int32_t fill_label = 0;                   // in a label's type
  bool keeps_not_finite = false;            // scores are copied as they are
  Rows points;                              // one row per point, with rows' type and channels, packed

  // For labels: counts the points that get the fill label from their row. Counts may lie in page-locked host memory,
  // since such points are rare.
  uint32_t* num_filled = nullptr;        // [num_samples], to which the kernel adds; null: nothing is counted
  const int64_t* point_begin = nullptr;  // [num_samples + 1] for all points of the batch; `points` may be some of them
  int32_t num_samples = 0;
  int64_t first_point = 0;  // index in the batch of the first point in `points`
};
static_assert(std::is_trivially_copyable_v<VoxelToPointParams>);

namespace cpu {

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t VoxelToPoint(const VoxelToPointParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
