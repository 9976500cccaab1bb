#pragma once

// Every site reduces the rows of its points, channel by channel, in their order: the largest, the average or the sum.
// 0 where it has none; NaN wins every comparison. Sums are float32. Deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointToVoxelParams {
  PoolReduce reduce = PoolReduce::kMax;
  const int64_t* site_begin = nullptr;     // [sites + 1] first entry of each site in sorted_points
  const int32_t* sorted_points = nullptr;  // rows of `in`

  ConstRows in;  // the CPU has float32 alone
  Rows out;      // a row a site, below 2^31; in's channels, its type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PointToVoxelParams>);

namespace cpu {

void PointToVoxel(const PointToVoxelParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
