#include <algorithm>
#include <cassert>

#include "kernels/image/max_pool2d.h"

namespace voxserve::kernels::cpu {
namespace {

// in: the index of the image's first position.
void ReduceWindow(const MaxPool2dParams& params, int64_t in, const WindowRange& rows, const WindowRange& columns,
                  float* out) {
  bool is_first = true;
  for (int32_t row = rows.begin; row < rows.end; ++row) {
    for (int32_t column = columns.begin; column < columns.end; ++column) {
      const float* const values = params.in.floats(in + int64_t{row} * params.in_columns + column);
      if (is_first) {
        std::copy_n(values, params.out.channels, out);
      } else {
        for (int32_t c = 0; c < params.out.channels; ++c) out[c] = LargerOrNan(out[c], values[c]);
      }
      is_first = false;
    }
  }
}

}  // namespace

void MaxPool2d(const MaxPool2dParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const int64_t num_rows = params.geometry.OutSize(0, params.in_rows);
  const int64_t num_columns = params.geometry.OutSize(1, params.in_columns);
  pool.ParallelFor(params.num_images * num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<int32_t>(i % num_rows);
      const int64_t in = i / num_rows * params.in_rows * params.in_columns;
      const WindowRange rows = WindowOf(params.geometry, 0, row, params.in_rows);
      for (int32_t column = 0; column < num_columns; ++column) {
        ReduceWindow(params, in, rows, WindowOf(params.geometry, 1, column, params.in_columns),
                     params.out.floats(i * num_columns + column));
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
