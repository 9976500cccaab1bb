#pragma once

// A phase of a 2D convolution (kernels/image/conv2d.h) is the set of the output positions that read the same cells. It
// is described as a convolution of its own, separately for rows and columns. An ordinary convolution has one phase; a
// transposed convolution has stride phases per axis.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/image/conv2d.h"

namespace voxserve::kernels {

// A phase on one axis. Output q of num_outputs is at position out_begin + q * out_step, and reads num_cells cells. Cell
// j of the phase is cell first_cell + j * cell_step of the kernel. Through it, output q reads the input position
// in_begin + q * in_step + j * cell_reach; positions outside the image are 0.
struct Conv2dPhase {
  int32_t num_outputs;
  int32_t out_begin;
  int32_t out_step;
  int32_t num_cells;  // 0 if no input reaches the outputs
  int32_t first_cell;
  int32_t cell_step;
  int32_t in_begin;
  int32_t in_step;
  int32_t cell_reach;
};

constexpr int32_t NumPhases(const Conv2dGeometry& geometry, size_t axis) {
  return geometry.is_transposed ? geometry.stride[axis] : 1;
}

// Returns the number of cells of the phase that has the most cells.
constexpr int32_t MaxPhaseCells(const Conv2dGeometry& geometry, size_t axis) {
  return (geometry.kernel_size[axis] - 1) / NumPhases(geometry, axis) + 1;
}

// Returns phase number `phase` of NumPhases. in_size: the input positions on the axis.
constexpr Conv2dPhase PhaseOf(const Conv2dGeometry& geometry, size_t axis, int32_t in_size, int32_t phase) {
  const auto out_size = static_cast<int32_t>(std::max<int64_t>(0, geometry.OutSize(axis, in_size)));
  const int32_t stride = geometry.stride[axis];
  const int32_t padding = geometry.padding[axis];
  const int32_t kernel_size = geometry.kernel_size[axis];
  if (!geometry.is_transposed) {
    return {.num_outputs = out_size,
            .out_begin = 0,
            .out_step = 1,
            .num_cells = kernel_size,
            .first_cell = 0,
            .cell_step = 1,
            .in_begin = -padding,
            .in_step = stride,
            .cell_reach = geometry.dilation[axis]};
  }
  // An output y with y + padding = stride * m + phase reads the inputs m - i through cells phase + stride * i. Cells
  // are counted from the last cell, so that the inputs ascend with the cells.
  const int32_t out_begin = ((phase - padding) % stride + stride) % stride;
  const int32_t num_cells = phase < kernel_size ? (kernel_size - 1 - phase) / stride + 1 : 0;
  return {.num_outputs = out_begin < out_size ? (out_size - 1 - out_begin) / stride + 1 : 0,
          .out_begin = out_begin,
          .out_step = stride,
          .num_cells = num_cells,
          .first_cell = phase + stride * (num_cells - 1),
          .cell_step = -stride,
          .in_begin = (out_begin + padding - phase) / stride - (num_cells - 1),
          .in_step = 1,
          .cell_reach = 1};
}

}  // namespace voxserve::kernels
