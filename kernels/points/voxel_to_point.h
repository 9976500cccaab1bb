#pragma once

// What points are answered: every one gets its voxel's row, or its own; points without a voxel get the fill label, or
// scores of 0.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct VoxelToPointParams {
  const int32_t* point_to_voxel = nullptr;  // [points] row of the voxel; negative: none
  bool rows_are_points = false;             // else voxels
  ConstRows rows;                           // labels, one channel of uint8 or uint16; otherwise scores
  int32_t fill_label = 0;                   // of points without a voxel, in a label's type; scores: all bytes are 0
  Rows points;                              // a row a point, of rows' type and channels, packed
};
static_assert(std::is_trivially_copyable_v<VoxelToPointParams>);

namespace cpu {

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t VoxelToPoint(const VoxelToPointParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
