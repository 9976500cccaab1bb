#pragma once

// VoxelFeatures makes the features of voxels from the features of their points. Voxelize (voxelize.h) has grouped the
// points.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class VoxelReduce : int32_t { kFirst, kMean };

struct VoxelFeaturesParams {
  VoxelReduce reduce = VoxelReduce::kFirst;
  int64_t max_points_per_voxel = 0;  // for kMean: the most points of a voxel that are used, the first ones; 0: all

  ConstRows features;                      // [N, C] features of the points, float32
  const int32_t* sorted_points = nullptr;  // VoxelizeParams::sorted_points
  const int64_t* voxel_begin = nullptr;    // VoxelizeParams::voxel_begin, [V + 1]

  // Output: [V, C]. If the pitch is above C, the values between rows are set to 0. The CPU only supports float32; CUDA
  // supports float32, float16 and bfloat16.
  Rows out;
};
static_assert(std::is_trivially_copyable_v<VoxelFeaturesParams>);

namespace cpu {

// kFirst copies the features of a voxel's first point. kMean adds up the features of the voxel's points in float32, in
// input order, and divides the sum by the number of points.
void VoxelFeatures(const VoxelFeaturesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Computes the same float32 values as the CPU, and rounds them to the type of `out`.
cudaError_t VoxelFeatures(const VoxelFeaturesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
