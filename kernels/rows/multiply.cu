#include "kernels/core/row_launch.cuh"
#include "kernels/rows/multiply.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    MultiplyRowsKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ MultiplyRowsParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount], factors[kCount];
    rows.Load(params.in, row, channel, values);
    rows.Load(params.factor, row, channel, factors);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] *= factors[i];
    rows.Store(values, params.out, row, channel);
  });
}

}  // namespace

cudaError_t MultiplyRows(const MultiplyRowsParams& params, cudaStream_t stream) {
  if (params.factor.dtype != params.in.dtype) return cudaErrorInvalidValue;
  return LaunchRows("MultiplyRows", params.in, params.out, CommonAlignment().Add(params.factor),
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      MultiplyRowsKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
