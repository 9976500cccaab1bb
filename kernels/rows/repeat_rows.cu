#include "kernels/core/row_launch.cuh"
#include "kernels/rows/repeat_rows.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    RepeatRowsKernel(const RowsOf<T, Out, kCount> rows, const RepeatRowsParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount];
    rows.Load(params.rows, row % params.rows.capacity, channel, values);
    rows.Store(values, params.out, row, channel);
  });
}

}  // namespace

cudaError_t RepeatRows(const RepeatRowsParams& params, cudaStream_t stream) {
  if (params.rows.capacity == 0) return cudaSuccess;
  if (params.rows.dtype != params.out.dtype) return cudaErrorInvalidValue;
  return LaunchRows("RepeatRows", params.rows, params.out, CommonAlignment(), [&](const auto& rows) {
    RepeatRowsKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
