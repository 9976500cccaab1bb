#pragma once

// Computes the sums of a convolution of images in 8 bits by PyTorch's definition.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/kernels/image/conv2d_testing.h"
#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::kernels {

// weights: [cells, in_channels, out_channels]. Returns sums [output positions, out_channels].
inline std::vector<int64_t> Conv2dSums(const Shape& shape, const Int8Table& in, const std::vector<int8_t>& weights) {
  const Conv2dGeometry& geometry = shape.geometry;
  const auto ins = static_cast<size_t>(shape.in_channels), outs = static_cast<size_t>(shape.out_channels);
  std::vector<int64_t> sums(static_cast<size_t>(shape.NumOut()) * outs);
  const auto add = [&](int64_t image, int64_t y, int64_t x, int64_t in_y, int64_t in_x, size_t cell) {
    if (y < 0 || y >= shape.out_rows() || x < 0 || x >= shape.out_columns()) return;
    if (in_y < 0 || in_y >= shape.in_rows || in_x < 0 || in_x >= shape.in_columns) return;
    const int64_t from = (image * shape.in_rows + in_y) * shape.in_columns + in_x;
    int64_t* const to =
        sums.data() + static_cast<size_t>((image * shape.out_rows() + y) * shape.out_columns() + x) * outs;
    for (size_t i = 0; i < ins; ++i) {
      const auto value = static_cast<int64_t>(in.Get(from, static_cast<int32_t>(i)));
      const int8_t* const of_input = weights.data() + (cell * ins + i) * outs;
      for (size_t o = 0; o < outs; ++o) to[o] += value * of_input[o];
    }
  };
  // A convolution gathers, a transposed one scatters.
  const int64_t num_rows = geometry.is_transposed ? shape.in_rows : shape.out_rows();
  const int64_t num_columns = geometry.is_transposed ? shape.in_columns : shape.out_columns();
  const auto reached = [&](size_t axis, int64_t at, int64_t of_cell) {
    return at * geometry.stride[axis] - geometry.padding[axis] + geometry.dilation[axis] * of_cell;
  };
  for (int64_t image = 0; image < shape.num_images; ++image) {
    for (int32_t cell = 0; cell < geometry.kernel_size[0] * geometry.kernel_size[1]; ++cell) {
      for (int64_t y = 0; y < num_rows; ++y) {
        for (int64_t x = 0; x < num_columns; ++x) {
          const int64_t other_y = reached(0, y, cell / geometry.kernel_size[1]);
          const int64_t other_x = reached(1, x, cell % geometry.kernel_size[1]);
          if (geometry.is_transposed) {
            add(image, other_y, other_x, y, x, static_cast<size_t>(cell));
          } else {
            add(image, y, x, other_y, other_x, static_cast<size_t>(cell));
          }
        }
      }
    }
  }
  return sums;
}

}  // namespace voxserve::kernels
