#pragma once

// VoxelToPoint makes answers with one row per point, from labels or scores that have one row per voxel or per point.
// Every point gets its voxel's row, or its own row if rows_are_points.
//
// - Points without a voxel get the label fill_label, or scores of 0.
// - Labels: Argmax (argmax.h) also writes fill_label, for rows whose scores are not finite. The points that get the
//   label from such a row are counted in num_filled, sample by sample.
// - Scores: if a point's row has a value that is NaN or infinite, the point gets scores of 0, unless keeps_not_finite.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct VoxelToPointParams {
  const int32_t* point_to_voxel = nullptr;  // [points] row of the voxel; negative: none
  bool rows_are_points = false;             // true: `rows` has one row per point; false: one row per voxel
  ConstRows rows;                           // labels: one channel of uint8 or uint16; scores: float32
  int32_t fill_label = 0;                   // must fit a label's type
  bool keeps_not_finite = false;            // true: scores are copied as they are, with NaN and infinity
  // Output: one row per point, with rows' type and channels, packed. Labels may be in page-locked memory. On CUDA
  // points.num_rows may say how many points there are.
  Rows points;

  // For labels: [num_samples] VoxelToPoint adds the number of points that get fill_label from their row. The array may
  // be in page-locked host memory, to which a GPU adds some thousand points at a time. Null: nothing is counted.
  uint32_t* num_filled = nullptr;
  // The other members are read only with num_filled. `points` may be a part of the batch's points.
  const int64_t* point_begin = nullptr;  // [num_samples + 1] first point of each sample, for all points of the batch
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
