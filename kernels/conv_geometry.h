#pragma once

// The one description of a convolution's index space. Everything that walks a kernel's cells uses it.
//
// input = stride * output + Delta(k), Delta(k) = dilation * d(k) - padding, d in [0, kernel_size) per axis, with k
// running over the cells and the LAST axis fastest. For odd kernels under FLOOR and EXPAND padding is
// dilation * (kernel_size - 1) / 2 (centred), for even ones 0; under PADDED (spconv) it is the network's own.

#include <array>
#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

inline constexpr int kMaxDimension = 4;

// One coordinate, offset or size per axis; axes past the dimension are 0 (sizes: 1) and ignored.
using Axes = std::array<int32_t, kMaxDimension>;

// How the output sites of a strided convolution follow from its input sites (engine/ops/sparse_conv.h has the sources).
enum class CoordinateRule : int32_t { kFloor, kPadded, kExpand };

struct ConvGeometry {
  int32_t dimension = 3;
  Axes kernel_size = {1, 1, 1, 1};
  Axes stride = {1, 1, 1, 1};
  Axes dilation = {1, 1, 1, 1};
  Axes padding = {0, 0, 0, 0};

  // Cells of the kernel, K.
  constexpr int32_t NumOffsets() const {
    int32_t volume = 1;
    for (int axis = 0; axis < dimension; ++axis) volume *= kernel_size[axis];
    return volume;
  }

  // d(k), the place of cell k in the kernel.
  constexpr Axes Cell(int32_t k) const {
    Axes cell = {0, 0, 0, 0};
    for (int axis = dimension - 1; axis >= 0; --axis) {
      cell[axis] = k % kernel_size[axis];
      k /= kernel_size[axis];
    }
    return cell;
  }

  // Where a cell that stands at `cell` on this axis reads, relative to stride * output. From -padding (cell 0) up.
  constexpr int32_t DeltaOnAxis(int axis, int32_t cell) const { return dilation[axis] * cell - padding[axis]; }

  constexpr Axes Delta(int32_t k) const {
    Axes delta = Cell(k);
    for (int axis = 0; axis < dimension; ++axis) delta[axis] = DeltaOnAxis(axis, delta[axis]);
    return delta;
  }

  // True for stride 1, odd sizes and centred cells: then Delta(K - 1 - k) = -Delta(k).
  constexpr bool IsSymmetric() const {
    for (int axis = 0; axis < dimension; ++axis) {
      if (stride[axis] != 1 || kernel_size[axis] % 2 == 0 ||
          padding[axis] != dilation[axis] * (kernel_size[axis] / 2)) {
        return false;
      }
    }
    return true;
  }

  // True where EXPAND makes the sites that FLOOR makes (TorchSparse, MLSys 2022).
  constexpr bool StrideIsOneOrKernel() const {
    for (int axis = 0; axis < dimension; ++axis) {
      if (stride[axis] != 1 && stride[axis] != kernel_size[axis]) return false;
    }
    return true;
  }

  bool operator==(const ConvGeometry&) const = default;
};
static_assert(std::is_trivially_copyable_v<ConvGeometry>);

}  // namespace voxserve::kernels
