#pragma once

// VoxelPositions gives each voxel a position: that of its first point, or the mean of its points' positions, scaled and
// shifted. Voxelize (kernels/points/voxelize.h) has grouped the points.
//
//   out = (value - minimum) * scale + shift, axis by axis
//
// All arithmetic is float32, also the mean's sum, which adds the points in input order. `minimum` is the smallest
// coordinate of those points of the voxel's sample that have a voxel, or 0. A sample's positions do not depend on other
// samples.

#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct VoxelPositionsParams {
  bool is_mean = false;                    // false: the position of the voxel's first point
  ConstRows axes;                          // one row per point, below 2^31; float32, the first columns are the axes
  const int32_t* sorted_points = nullptr;  // VoxelizeParams::sorted_points
  const int64_t* voxel_begin = nullptr;    // [voxels + 1] VoxelizeParams::voxel_begin
  float scale[kMaxDimension] = {1, 1, 1, 1};
  float shift[kMaxDimension] = {0, 0, 0, 0};
  // [num_samples, kMaxDimension] scratch for the samples' minima, aligned to 8 bytes; null: the minimum is 0. The three
  // members after it are read only if it is not null.
  float* minima = nullptr;
  const int32_t* point_to_voxel = nullptr;  // [points]; negative: no voxel
  const int64_t* point_begin = nullptr;     // [num_samples + 1] the first point of each sample
  int32_t num_samples = 0;
  Rows out;  // [voxels, 1 to kMaxDimension axes]; the CPU only supports float32
};
static_assert(std::is_trivially_copyable_v<VoxelPositionsParams>);

namespace cpu {

void VoxelPositions(const VoxelPositionsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t VoxelPositions(const VoxelPositionsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
