#include "kernels/core/row_launch.cuh"
#include "kernels/rows/pool.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    PoolKernel(const RowsOf<T, Out, kCount> rows, const PoolParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount] = {};
    int32_t num_pairs = 0;
    for (int32_t k = 0; k < params.neighbours.num_offsets; ++k) {
      const int32_t in_row = params.neighbours.rows[k * params.neighbours.pitch + row];
      if (in_row < 0) continue;
      float read[kCount];
      rows.Load(params.in, in_row, channel, read);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (num_pairs == 0) {
          values[i] = read[i];
        } else {
          values[i] = params.reduce == PoolReduce::kMax ? LargerOrNan(values[i], read[i]) : values[i] + read[i];
        }
      }
      ++num_pairs;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (params.reduce == PoolReduce::kAverage && num_pairs > 1) values[i] /= static_cast<float>(num_pairs);
    }
    rows.Store(values, params.out, row, channel);
  });
}

}  // namespace

cudaError_t Pool(const PoolParams& params, cudaStream_t stream) {
  return LaunchRows("Pool", params.in, params.out, CommonAlignment(), [&](const auto& rows) {
    PoolKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
