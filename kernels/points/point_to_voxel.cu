#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/core/row_launch.cuh"
#include "kernels/points/point_to_voxel.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread reads the rows of so many points, and the numbers of the next points, before it uses the first row, so that
// it does not wait for the memory once a point. A pillar near the sensor has thousands of points.
constexpr int kRowsAtOnce = 8;
// Where the order of a site's points does not matter, threads share them: a maximum is the same, but for the sign of 0.
// So many threads share a chunk of channels of a site, or all threads of a block if the site has more than kFewPoints.
constexpr int kPointLanes = 2;
constexpr int64_t kFewPoints = 48;

// The points of a site that count.
struct SitePoints {
  int64_t begin, end;
  bool is_full;  // the site has max_points points or more

  __device__ SitePoints(const PointToVoxelParams& params, int64_t site)
      : begin(params.site_begin[site]), end(params.site_begin[site + 1]) {
    is_full = end - begin >= params.max_points;
    if (params.max_points > 0 && is_full) end = begin + params.max_points;
  }
  __device__ bool empty() const { return begin == end; }
};

// Calls use(values) for every stride-th point of [begin, end), in their order.
template <typename T, typename Out, int kCount, typename Use>
__device__ void ForEachPoint(const RowsOf<T, Out, kCount>&, const PointToVoxelParams& params, int64_t begin,
                             int64_t end, int64_t stride, int32_t channel, const Use& use) {
  const T* const in = static_cast<const T*>(params.in.data) + channel;
  int64_t at = begin;
  int32_t points[kRowsAtOnce];  // those whose rows are read next; -1: there is no such point
  const auto list_points = [&] {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      points[i] = at + i * stride < end ? params.sorted_points[at + i * stride] : -1;
  };
  list_points();
  while (at < end) {
    PackBits<T, kCount> read[kRowsAtOnce];
    bool is_there[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      is_there[i] = points[i] >= 0;
      if (is_there[i]) read[i] = LoadBits<kCount>(in + points[i] * params.in.pitch);
    }
    at += kRowsAtOnce * stride;
    list_points();
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (!is_there[i]) continue;
      float values[kCount];
#pragma unroll
      for (int c = 0; c < kCount; ++c) values[c] = ValueOf<T, kCount>(read[i], c);
      use(values);
    }
  }
}

// Sums and averages: a thread adds up kCount channels of a site, in the order of its points.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    SumPointsKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ PointToVoxelParams params) {
  rows.ForEach([&](int64_t site, int32_t channel) {
    const SitePoints points(params, site);
    float sums[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) sums[c] = points.empty() ? 0.0F : -0.0F;  // -0 plus a value is that value
    ForEachPoint(rows, params, points.begin, points.end, 1, channel, [&](const float(&values)[kCount]) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) sums[c] += values[c];
    });
    const int64_t count = points.end - points.begin;
    if (params.reduce == PoolReduce::kAverage && count > 1) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) sums[c] /= static_cast<float>(count);
    }
    rows.Store(sums, params.out, site, channel);
  });
}

// Threads that share the points of a site, and combine their maxima: lanes * lane_chunks neighbouring ones. Thread
// lane * lane_chunks + i of them takes every lanes-th point, and the chunks i, i + lane_chunks and so on.
struct SharedSite {
  int64_t site;  // -1: the threads have none
  int32_t lane, lanes, lane_chunks;
};

// Computes the maxima of a site. All threads of the block call it, each with its site.
template <typename T, typename Out, int kCount>
__device__ void LargestOfSite(const RowsOf<T, Out, kCount>& rows, const PointToVoxelParams& params,
                              const SharedSite& shared) {
  __shared__ Pack<float, kCount> of_lanes[kBlockThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t first = 0; first < rows.chunks.chunks; first += shared.lane_chunks) {
    const int32_t chunk = first + thread % shared.lane_chunks, channel = chunk * kCount;
    const bool is_used = shared.site >= 0 && chunk < rows.chunks.chunks;
    if (is_used) {
      const SitePoints points(params, shared.site);
      Pack<float, kCount> largest;
#pragma unroll
      for (int c = 0; c < kCount; ++c) largest.values[c] = -INFINITY;
      ForEachPoint(rows, params, points.begin + shared.lane, points.end, shared.lanes, channel,
                   [&](const float(&values)[kCount]) {
#pragma unroll
                     for (int c = 0; c < kCount; ++c) {
                       largest.values[c] = LargerOrNan(largest.values[c], values[c]);
                     }
                   });
      of_lanes[thread] = largest;
    }
    __syncthreads();
    if (is_used && shared.lane == 0) {
      const SitePoints points(params, shared.site);
      float largest[kCount];
#pragma unroll
      for (int c = 0; c < kCount; ++c) largest[c] = of_lanes[thread].values[c];
      for (int32_t other = 1; other < shared.lanes; ++other) {
        const Pack<float, kCount>& of_other = of_lanes[thread + other * shared.lane_chunks];
#pragma unroll
        for (int c = 0; c < kCount; ++c) largest[c] = LargerOrNan(largest[c], of_other.values[c]);
      }
      if (params.empty_slots.data != nullptr && !points.is_full) {
        float slot[kCount];
        rows.Load(params.empty_slots, shared.site, channel, slot);
#pragma unroll
        for (int c = 0; c < kCount; ++c) largest[c] = LargerOrNan(largest[c], slot[c]);
      } else if (points.empty()) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) largest[c] = 0;
      }
      rows.Store(largest, params.out, shared.site, channel);
    }
    __syncthreads();
  }
}

// Maxima: groups_a_block groups of kPointLanes * lane_chunks threads take a site each; the threads beyond are idle.
// Then the whole block takes those of its sites that have many points. Neighbouring sites, which often have many points
// together, go to different blocks.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    LargestOfPointsKernel(const RowsOf<T, Out, kCount> rows, const int32_t lane_chunks, const int32_t groups_a_block,
                          const __grid_constant__ PointToVoxelParams params) {
  const int64_t num_sites = NumRows(params.out.capacity, params.out.num_rows);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread / lane_chunks;
  const auto site_of = [&](int32_t group, bool has_many) {
    const int64_t site = int64_t{group} * gridDim.x + blockIdx.x;
    if (group >= groups_a_block || site >= num_sites) return int64_t{-1};
    const SitePoints points(params, site);
    return (points.end - points.begin > kFewPoints) == has_many ? site : int64_t{-1};
  };
  if (blockIdx.x >= num_sites) return;  // all threads of the block
  LargestOfSite(rows, params,
                {.site = site_of(lane / kPointLanes, /*has_many=*/false),
                 .lane = lane % kPointLanes,
                 .lanes = kPointLanes,
                 .lane_chunks = lane_chunks});
  const int32_t all_lanes = kBlockThreads / lane_chunks;
  for (int32_t group = 0; group < groups_a_block; ++group) {
    const int64_t site = site_of(group, /*has_many=*/true);
    if (site < 0) continue;  // all threads of the block
    LargestOfSite(rows, params,
                  {.site = lane < all_lanes ? site : -1, .lane = lane, .lanes = all_lanes, .lane_chunks = lane_chunks});
  }
}

}  // namespace

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream) {
  return LaunchRows(
      "PointToVoxel", params.in, params.out, CommonAlignment().Add(params.empty_slots), [&](const auto& rows) {
        if (params.reduce != PoolReduce::kMax) {
          SumPointsKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
          return LaunchStatus(stream);
        }
        const int32_t lane_chunks = std::min(rows.chunks.chunks, kBlockThreads / kPointLanes);
        const int32_t groups_a_block = kBlockThreads / (kPointLanes * lane_chunks);
        LargestOfPointsKernel<<<NumBlocks(params.out.capacity, groups_a_block), kBlockThreads, 0, stream>>>(
            rows, lane_chunks, groups_a_block, params);
        return LaunchStatus(stream);
      });
}

}  // namespace voxserve::kernels::cuda
