#pragma once

// PointToVoxel computes the maximum, average or sum of the rows of each site's points, channel by channel. PointGroups
// (point_groups.h) or Voxelize has grouped the points. A site without points gets 0. A maximum is NaN if one of the
// values is NaN. Sums are float32, in the order of sorted_points, so the result is deterministic.
//
// Optionally only the first max_points points of a site are used. With a maximum, a site with fewer points can also use
// an extra row, as a network does that pads each voxel to max_points slots.

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

  ConstRows in;  // one row per point; the CPU only supports float32
  // Only with kMax and max_points: the extra rows, one per site, with in's channels and type. A site's extra row is
  // part of its maximum if the site has fewer than max_points points. Null data: there are no extra rows.
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
