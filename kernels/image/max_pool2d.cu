#include "kernels/core/row_launch.cuh"
#include "kernels/image/max_pool2d.h"

namespace voxserve::kernels::cuda {
namespace {

// The size of an output image.
struct ImageSize {
  int64_t rows, columns;
};

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    MaxPool2dKernel(const RowsOf<T, Out, kCount> positions, const __grid_constant__ MaxPool2dParams params,
                    const ImageSize out) {
  positions.ForEach([&](int64_t position, int32_t channel) {
    const int64_t line = position / out.columns, image = line / out.rows;
    const WindowRange rows =
        WindowOf(params.geometry, 0, static_cast<int32_t>(line - image * out.rows), params.in_rows);
    const WindowRange columns =
        WindowOf(params.geometry, 1, static_cast<int32_t>(position - line * out.columns), params.in_columns);
    float values[kCount] = {};
    bool is_first = true;
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      const int64_t begin = (image * params.in_rows + row) * params.in_columns;
      for (int32_t column = columns.begin; column < columns.end; ++column) {
        float read[kCount];
        positions.Load(params.in, begin + column, channel, read);
#pragma unroll
        for (int c = 0; c < kCount; ++c) values[c] = is_first ? read[c] : LargerOrNan(values[c], read[c]);
        is_first = false;
      }
    }
    positions.Store(values, params.out, position, channel);
  });
}

}  // namespace

cudaError_t MaxPool2d(const MaxPool2dParams& params, cudaStream_t stream) {
  const ImageSize out = {.rows = params.geometry.OutSize(0, params.in_rows),
                         .columns = params.geometry.OutSize(1, params.in_columns)};
  return LaunchRows("MaxPool2d", params.in, params.out, CommonAlignment(), [&](const auto& positions) {
    MaxPool2dKernel<<<positions.NumBlocks(), kBlockThreads, 0, stream>>>(positions, params, out);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
