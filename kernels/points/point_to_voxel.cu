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
// So many threads share a site's points where their order does not matter: a maximum is the same, but for the sign of
// 0.
constexpr int kPointLanes = 8;

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

// Calls use(values) for every kStride-th point of [begin, end), in their order.
template <int kStride, typename T, typename Out, int kCount, typename Use>
__device__ void ForEachPoint(const RowsOf<T, Out, kCount>& rows, const PointToVoxelParams& params, int64_t begin,
                             int64_t end, int32_t channel, const Use& use) {
  const T* const in = static_cast<const T*>(params.in.data) + channel;
  const auto read_row = [&](int32_t point) { return LoadPack<kCount>(in + point * params.in.pitch); };
  const auto use_row = [&](const Pack<T, kCount>& row) {
    float values[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) values[c] = ToFloat(row.values[c]);
    use(values);
  };
  int64_t at = begin;
  int32_t points[kRowsAtOnce];  // those whose rows are read next
  const auto list_points = [&] {
    const bool has_all = at + (kRowsAtOnce - 1) * kStride < end;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) points[i] = has_all ? params.sorted_points[at + i * kStride] : 0;
    return has_all;
  };
  for (bool has_points = list_points(); has_points;) {
    Pack<T, kCount> read[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) read[i] = read_row(points[i]);
    at += kRowsAtOnce * kStride;
    has_points = list_points();
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) use_row(read[i]);
  }
  for (; at < end; at += kStride) use_row(read_row(params.sorted_points[at]));
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
    ForEachPoint<1>(rows, params, points.begin, points.end, channel, [&](const float(&values)[kCount]) {
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

// Maxima: a group of threads takes a site. Each of its kPointLanes lanes reads every kPointLanes-th point.
// groups_a_block groups of kPointLanes * lane_chunks threads fit a block; the threads beyond are idle.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    LargestOfPointsKernel(const RowsOf<T, Out, kCount> rows, const int32_t lane_chunks, const int32_t groups_a_block,
                          const __grid_constant__ PointToVoxelParams params) {
  __shared__ Pack<float, kCount> of_lanes[kBlockThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t group_threads = kPointLanes * lane_chunks, group = thread / group_threads;
  const int32_t lane = thread % group_threads / lane_chunks;
  const int64_t site = int64_t{blockIdx.x} * groups_a_block + group;
  const bool has_site = group < groups_a_block && site < NumRows(params.out.capacity, params.out.num_rows);
  for (int32_t first = 0; first < rows.chunks.chunks; first += lane_chunks) {
    const int32_t chunk = first + thread % lane_chunks, channel = chunk * kCount;
    const bool is_used = has_site && chunk < rows.chunks.chunks;
    if (is_used) {
      const SitePoints points(params, site);
      Pack<float, kCount> largest;
#pragma unroll
      for (int c = 0; c < kCount; ++c) largest.values[c] = -INFINITY;
      ForEachPoint<kPointLanes>(rows, params, points.begin + lane, points.end, channel,
                                [&](const float(&values)[kCount]) {
#pragma unroll
                                  for (int c = 0; c < kCount; ++c) {
                                    largest.values[c] = LargerOrNan(largest.values[c], values[c]);
                                  }
                                });
      of_lanes[thread] = largest;
    }
    __syncthreads();
    if (is_used && lane == 0) {
      const SitePoints points(params, site);
      float largest[kCount];
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        largest[c] = of_lanes[thread].values[c];
#pragma unroll
        for (int other = 1; other < kPointLanes; ++other) {
          largest[c] = LargerOrNan(largest[c], of_lanes[thread + other * lane_chunks].values[c]);
        }
      }
      if (params.empty_slots.data != nullptr && !points.is_full) {
        float slot[kCount];
        rows.Load(params.empty_slots, site, channel, slot);
#pragma unroll
        for (int c = 0; c < kCount; ++c) largest[c] = LargerOrNan(largest[c], slot[c]);
      } else if (points.empty()) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) largest[c] = 0;
      }
      rows.Store(largest, params.out, site, channel);
    }
    __syncthreads();
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
