#pragma once

// Every site reduces the rows of its points, channel by channel, in their order: the largest, the average or the sum.
// 0 where it has none; NaN wins every comparison. Sums are float32. Deterministic. Of a site's points the first
// max_points may be all that count, and a site with fewer of them may have another row to compare with.

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

  ConstRows in;  // the CPU has float32 alone
  // With kMax and max_points: a row a site, of in's channels and type, which counts where a site has fewer points. No
  // data: none.
  ConstRows empty_slots;
  Rows out;  // a row a site, below 2^31; in's channels, its type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PointToVoxelParams>);

namespace cpu {

void PointToVoxel(const PointToVoxelParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
