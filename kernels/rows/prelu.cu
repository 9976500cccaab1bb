#include "kernels/core/row_launch.cuh"
#include "kernels/rows/prelu.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    PReluKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ PReluParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount];
    rows.Load(params.in, row, channel, values);
    const Pack<float, kCount> slopes = LoadConstantPack<kCount>(params.slopes + channel);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = values[i] < 0.0f ? slopes.values[i] * values[i] : values[i];
    rows.Store(values, params.out, row, channel);
  });
}

}  // namespace

cudaError_t PRelu(const PReluParams& params, cudaStream_t stream) {
  return LaunchRows("PRelu", params.in, params.out, CommonAlignment().Add(params.slopes),
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      PReluKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
