#pragma once

// VoxelFeatures makes the features of voxels from those of their points, which Voxelize (voxelize.h) has grouped.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class VoxelReduce : int32_t { kFirst, kMean };

struct VoxelFeaturesParams {
  VoxelReduce reduce = VoxelReduce::kFirst;
  int64_t max_points_per_voxel = 0;  // for kMean: only the first points of a voxel count; 0 means all

  ConstRows features;                      // [N, C] of the points, float32
  const int32_t* sorted_points = nullptr;  // as Voxelize made them
  const int64_t* voxel_begin = nullptr;    // [V + 1]

  // [V, C]; the values between rows are set to 0. On the CPU only float32; on CUDA float32, float16 and bfloat16.
  Rows out;
};
static_assert(std::is_trivially_copyable_v<VoxelFeaturesParams>);

namespace cpu {

// kFirst takes the features of a voxel's first point. kMean takes their float32 sum in input order, divided by their
// number.
void VoxelFeatures(const VoxelFeaturesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// The sum and the quotient are the same as on the CPU, and are then rounded to the dtype.
cudaError_t VoxelFeatures(const VoxelFeaturesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
