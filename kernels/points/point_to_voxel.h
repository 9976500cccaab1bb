#pragma once

// PointToVoxel reduces the rows of each site's points, channel by channel, in their order: the maximum, average or sum.
// A site without points gets 0. NaN wins every comparison. Sums are float32. The result is deterministic. Optionally
// only the first max_points of a site's points count, and a site with fewer points also compares with an extra row.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointToVoxelParams {
  PoolReduce reduce = PoolReduce::kMax;
  int64_t max_points = 0;                  // 0: all
  const int64_t* site_begin = nullptr;     // [sites + 1] first entry of each site in sorted_points
  const int32_t* sorted_points = nullptr;  // rows of `in`

  ConstRows in;  // float32 only on the CPU
  // Only with kMax and max_points: the extra row, one per site, with in's channels and type. It counts if a site has
  // fewer than max_points points. No data: there are no extra rows.
  ConstRows empty_slots;
  Rows out;  // one row per site, below 2^31; in's channels, in's type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PointToVoxelParams>);

namespace cpu {

void PointToVoxel(const PointToVoxelParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
