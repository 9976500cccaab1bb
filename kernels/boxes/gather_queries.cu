#include "kernels/boxes/gather_queries.h"
#include "kernels/core/row_launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    GatherCellsKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ GatherQueriesParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount];
    rows.Load(params.cells, CellRowOf(params, row), channel, values);
    rows.Store(values, params.out, row, channel);
  });
}

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    GatherSelectedKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ GatherQueriesParams params) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = SelectedValue(params.of, params.selection + row * kSelectionColumns, channel + i);
    }
    rows.Store(values, params.out, row, channel);
  });
}

}  // namespace

cudaError_t GatherQueries(const GatherQueriesParams& params, cudaStream_t stream) {
  if (params.of == GatherOf::kFeatures) {
    return LaunchRows("GatherQueries", params.cells, params.out, CommonAlignment(), [&](const auto& rows) {
      GatherCellsKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
      return LaunchStatus(stream);
    });
  }
  const ConstRows type_of_out{.dtype = params.out.dtype};
  return LaunchRows("GatherQueries", type_of_out, params.out, CommonAlignment(), [&](const auto& rows) {
    GatherSelectedKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
