#include "kernels/core/epilogue.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/rows/pool.h"

namespace voxserve::kernels::cuda {
namespace {

// Neighbours that a thread loads before it adds up the first one. The loads then wait for the memory together.
constexpr int32_t kAtOnce = 8;

// kIsPlain: there is neither a scale nor an epilogue.
template <bool kIsPlain, typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    PoolKernel(const RowsOf<T, Out, kCount> rows, const PoolParams params, const TypedEpilogue<T, float> epilogue) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount] = {};
    int32_t num_pairs = 0;
    for (int32_t first = 0; first < params.neighbours.num_offsets; first += kAtOnce) {
      int32_t in_rows[kAtOnce];
#pragma unroll
      for (int32_t n = 0; n < kAtOnce; ++n) {
        const int32_t k = first + n;
        in_rows[n] = k < params.neighbours.num_offsets ? params.neighbours.rows[k * params.neighbours.pitch + row] : -1;
      }
      PackBits<T, kCount> read[kAtOnce];
#pragma unroll
      for (int32_t n = 0; n < kAtOnce; ++n) {
        if (in_rows[n] >= 0) {
          read[n] = LoadBits<kCount>(static_cast<const T*>(params.in.data) + in_rows[n] * params.in.pitch + channel);
        }
      }
#pragma unroll
      for (int32_t n = 0; n < kAtOnce; ++n) {
        if (in_rows[n] < 0) continue;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const float value = ValueOf<T, kCount>(read[n], i);
          if (num_pairs == 0) {
            values[i] = value;
          } else {
            values[i] = params.reduce == PoolReduce::kMax ? LargerOrNan(values[i], value) : values[i] + value;
          }
        }
        ++num_pairs;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (params.reduce == PoolReduce::kAverage && num_pairs > 1) values[i] /= static_cast<float>(num_pairs);
    }
    if constexpr (kIsPlain) {
      rows.Store(values, params.out, row, channel);
    } else {
      if (params.scale != nullptr) {
        const Pack<float, kCount> factors = LoadConstantPack<kCount>(params.scale + channel);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] *= factors.values[i];
      }
      epilogue.Store(values, row, channel, rows.Place(params.out, row, channel));
    }
  });
}

}  // namespace

cudaError_t Pool(const PoolParams& params, cudaStream_t stream) {
  CommonAlignment others;
  AddEpilogue(params.epilogue, others.Add(params.scale));
  return LaunchRows(
      "Pool", params.in, params.out, others,
      [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
        const bool is_plain = params.scale == nullptr && params.epilogue.IsEmpty();
        const auto kernel = is_plain ? PoolKernel<true, T, Out, kCount> : PoolKernel<false, T, Out, kCount>;
        kernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params, TypedEpilogue<T, float>(params.epilogue));
        return LaunchStatus(stream);
      });
}

}  // namespace voxserve::kernels::cuda
