#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/pool.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread has kCount channels of an output row.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads) PoolKernel(const RowChunks rows, const PoolParams params) {
  const auto* const in = static_cast<const T*>(params.in);
  auto* const out = static_cast<Out*>(params.out);
  rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    float values[kCount] = {};
    int32_t num_pairs = 0;
    for (int32_t k = 0; k < params.num_offsets; ++k) {
      const int32_t in_row = params.neighbours[k * params.neighbours_pitch + row];
      if (in_row < 0) continue;
      const Pack<T, kCount> read = LoadPack<kCount>(in + in_row * params.in_pitch + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float value = ToFloat(read.values[i]);
        if (num_pairs == 0) {
          values[i] = value;
        } else {
          values[i] = params.reduce == PoolReduce::kMax ? LargerOrNan(values[i], value) : values[i] + value;
        }
      }
      ++num_pairs;
    }
    Pack<Out, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (params.reduce == PoolReduce::kAverage && num_pairs > 1) values[i] /= static_cast<float>(num_pairs);
      result.values[i] = FromFloat<Out>(values[i]);
    }
    *reinterpret_cast<Pack<Out, kCount>*>(out + row * params.out_pitch + channel) = result;
  });
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchPool(const PoolParams& params, cudaStream_t stream) {
  const RowChunks rows(params.num_out_rows, params.channels / kCount);
  PoolKernel<T, Out, kCount><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t Pool(const PoolParams& params, cudaStream_t stream) {
  if (params.num_out_rows == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("Pool");
  const int64_t value_bytes = SizeOf(params.dtype), out_bytes = SizeOf(params.out_dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.out)
      .Add(params.out_pitch * out_bytes);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchPool<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchPool<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
