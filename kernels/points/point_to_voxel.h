#pragma once

// Every site reduces the rows of its points, channel by channel, in their order: the largest, the average or the sum.
// 0 where it has none; NaN wins every comparison. Sums are float32. Deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointToVoxelParams {
  PoolReduce reduce = PoolReduce::kMax;
  int64_t num_sites = 0;                   // below 2^31
  const int64_t* site_begin = nullptr;     // [num_sites + 1] first entry of each site in sorted_points
  const int32_t* sorted_points = nullptr;  // rows of `in`

  int32_t channels = 0;
  DType dtype = DType::kFloat32;      // of in; the CPU has float32 alone
  DType out_dtype = DType::kFloat32;  // of out: dtype, or float32
  const void* in = nullptr;           // rows in_pitch values apart
  int64_t in_pitch = 0;
  void* out = nullptr;  // [num_sites, channels], rows out_pitch values apart; must not overlap `in`
  int64_t out_pitch = 0;
};
static_assert(std::is_trivially_copyable_v<PointToVoxelParams>);

namespace cpu {

void PointToVoxel(const PointToVoxelParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
