#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/points/point_to_voxel.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread has kCount channels of a site.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    PointToVoxelKernel(const RowChunks rows, const __grid_constant__ PointToVoxelParams params) {
  const auto* const in = static_cast<const T*>(params.in);
  auto* const out = static_cast<Out*>(params.out);
  rows.ForEach([&](int64_t site, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    const int64_t begin = params.site_begin[site], end = params.site_begin[site + 1];
    float values[kCount] = {};
    for (int64_t i = begin; i < end; ++i) {
      const Pack<T, kCount> read = LoadPack<kCount>(in + params.sorted_points[i] * params.in_pitch + channel);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const float value = ToFloat(read.values[c]);
        if (i == begin) {
          values[c] = value;
        } else {
          values[c] = params.reduce == PoolReduce::kMax ? LargerOrNan(values[c], value) : values[c] + value;
        }
      }
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      if (params.reduce == PoolReduce::kAverage && end - begin > 1) values[c] /= static_cast<float>(end - begin);
      result.values[c] = FromFloat<Out>(values[c]);
    }
    *reinterpret_cast<Pack<Out, kCount>*>(out + site * params.out_pitch + channel) = result;
  });
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchPointToVoxel(const PointToVoxelParams& params, cudaStream_t stream) {
  const RowChunks rows(params.num_sites, params.channels / kCount);
  PointToVoxelKernel<T, Out, kCount><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t PointToVoxel(const PointToVoxelParams& params, cudaStream_t stream) {
  if (params.num_sites == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("PointToVoxel");
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchPointToVoxel<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchPointToVoxel<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
