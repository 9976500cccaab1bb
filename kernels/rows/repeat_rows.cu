#include "kernels/core/launch.cuh"
#include "kernels/rows/repeat_rows.h"

namespace voxserve::kernels::cuda {
namespace {

// Writes one value per thread; neighbouring threads have neighbouring channels.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads) RepeatRowsKernel(const RepeatRowsParams params) {
  const int64_t index = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const int64_t row = index / params.out.channels, c = index - row * params.out.channels;
  if (row >= params.out.capacity) return;
  const int64_t from = row % params.rows.capacity;
  static_cast<T*>(params.out.data)[row * params.out.pitch + c] =
      static_cast<const T*>(params.rows.data)[from * params.rows.pitch + c];
}

}  // namespace

cudaError_t RepeatRows(const RepeatRowsParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0 || params.rows.capacity == 0) return cudaSuccess;
  if (params.rows.dtype != params.out.dtype) return cudaErrorInvalidValue;
  const NvtxRange range("RepeatRows");
  return VisitFeatureType(params.out.dtype, [&](auto type) {
    using T = decltype(type);
    RepeatRowsKernel<T><<<NumBlocks(params.out.capacity * params.out.channels), kBlockThreads, 0, stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
