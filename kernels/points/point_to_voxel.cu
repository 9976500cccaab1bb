#include "kernels/core/row_launch.cuh"
#include "kernels/points/point_to_voxel.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    PointToVoxelKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ PointToVoxelParams params) {
  rows.ForEach([&](int64_t site, int32_t channel) {
    const int64_t begin = params.site_begin[site];
    int64_t end = params.site_begin[site + 1];
    const bool is_full = end - begin >= params.max_points;
    if (params.max_points > 0 && is_full) end = begin + params.max_points;
    float values[kCount] = {};
    for (int64_t i = begin; i < end; ++i) {
      float read[kCount];
      rows.Load(params.in, params.sorted_points[i], channel, read);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (i == begin) {
          values[c] = read[c];
        } else {
          values[c] = params.reduce == PoolReduce::kMax ? LargerOrNan(values[c], read[c]) : values[c] + read[c];
        }
      }
    }
    if (params.empty_slots.data != nullptr && !is_full) {
      float slot[kCount];
      rows.Load(params.empty_slots, site, channel, slot);
#pragma unroll
      for (int c = 0; c < kCount; ++c) values[c] = begin == end ? slot[c] : LargerOrNan(values[c], slot[c]);
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      if (params.reduce == PoolReduce::kAverage && end - begin > 1) values[c] /= static_cast<float>(end - begin);
    }
    rows.Store(values, params.out, site, channel);
  });
}

}  // namespace

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream) {
  return LaunchRows("PointToVoxel", params.in, params.out, CommonAlignment().Add(params.empty_slots),
                    [&](const auto& rows) {
                      PointToVoxelKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
