#pragma once

// ConvGeometry says which input sites an output site of a sparse convolution reads. All code that walks a kernel's
// cells uses this description.
//
// A cell is one place of the kernel; the field also calls it a kernel offset. Output o reads through cell k the input
//   stride * o + Delta(k), with Delta(k) = dilation * d(k) - padding and d(k) in [0, kernel_size) per axis.
// Cells are numbered with the LAST axis fastest. Under kPadded and kTransposed (spconv), and for convolutions onto
// given sites, the network may set the padding. Otherwise the padding of a box is dilation * (kernel_size - 1) / 2
// (centred) on an axis with an odd kernel size, and 0 on an axis with an even one.
//
// A kernel that is no box (a cross, a list of offsets) is a subset of the cells of its bounding box ("the box"), in the
// box's order.
//
// Plain values and pure functions, for any thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

inline constexpr int kMaxDimension = 4;
inline constexpr int kMaxListedCells = 343;  // the most cells of a kernel that is no box

// One coordinate, offset or size per axis. Axes beyond the dimension are 0 (sizes: 1) and ignored.
using Axes = std::array<int32_t, kMaxDimension>;

// CoordinateRule says how the output sites of a convolution follow from its input sites. output_coordinates.h states
// the rules, engine/ops/conv/sparse_conv.h names their sources.
enum class CoordinateRule : int32_t { kFloor, kPadded, kExpand, kTransposed, kGenerative };

// Returns true for the rules of transposed convolutions. They exchange the roles of the formula above: the network's
// input is `o`, and its output is stride * o + Delta(k).
constexpr bool MakesFinerSites(CoordinateRule rule) {
  return rule == CoordinateRule::kTransposed || rule == CoordinateRule::kGenerative;
}

// Returns true if the rule limits its output sites to [0, spatial shape).
constexpr bool HasShape(CoordinateRule rule) {
  return rule == CoordinateRule::kPadded || rule == CoordinateRule::kTransposed;
}

struct ConvGeometry {
  int32_t dimension = 3;
  Axes kernel_size = {1, 1, 1, 1};
  Axes stride = {1, 1, 1, 1};
  Axes dilation = {1, 1, 1, 1};
  Axes padding = {0, 0, 0, 0};  // at least 0; any sign for a kernel that is no box
  // For a kernel that is no box: the numbers of its cells within the box, ascending. If num_listed_cells is 0, the
  // kernel is the whole box.
  int32_t num_listed_cells = 0;
  std::array<int32_t, kMaxListedCells> listed_cells = {};

  // Returns the count of the box's cells.
  constexpr int32_t Volume() const {
    int32_t volume = 1;
    for (int axis = 0; axis < dimension; ++axis) volume *= kernel_size[axis];
    return volume;
  }

  // Returns the count of the kernel's cells, K.
  constexpr int32_t NumOffsets() const { return num_listed_cells > 0 ? num_listed_cells : Volume(); }

  // Converts cell k of the kernel, 0 <= k < K, to its number within the box.
  constexpr int32_t CellInBox(int32_t k) const {
    return num_listed_cells > 0 ? listed_cells[static_cast<std::size_t>(k)] : k;
  }

  // Returns d(k), the place of cell k in the kernel.
  constexpr Axes Cell(int32_t k) const {
    Axes cell = {0, 0, 0, 0};
    k = CellInBox(k);
    for (int axis = dimension - 1; axis >= 0; --axis) {
      cell[axis] = k % kernel_size[axis];
      k /= kernel_size[axis];
    }
    return cell;
  }

  // Returns the position that a cell at place `cell` of this axis reads, relative to stride * output. Cell 0 reads
  // -padding.
  constexpr int32_t DeltaOnAxis(int axis, int32_t cell) const { return dilation[axis] * cell - padding[axis]; }

  constexpr Axes Delta(int32_t k) const {
    Axes delta = Cell(k);
    for (int axis = 0; axis < dimension; ++axis) delta[axis] = DeltaOnAxis(axis, delta[axis]);
    return delta;
  }

  // Returns true if Delta(K - 1 - k) = -Delta(k) for all cells, stride is 1 and K is odd. This needs odd sizes and
  // centred padding. A kernel that is no box must also have the opposite of each of its cells.
  constexpr bool IsSymmetric() const {
    for (int axis = 0; axis < dimension; ++axis) {
      if (stride[axis] != 1 || kernel_size[axis] % 2 == 0 ||
          padding[axis] != dilation[axis] * (kernel_size[axis] / 2)) {
        return false;
      }
    }
    if (num_listed_cells % 2 == 0) return num_listed_cells == 0;
    for (int32_t k = 0; k <= num_listed_cells / 2; ++k) {
      if (CellInBox(k) + CellInBox(num_listed_cells - 1 - k) != Volume() - 1) return false;
    }
    return true;
  }

  // Returns true if the stride is 1 or kernel_size on every axis. kExpand then makes the same sites as kFloor
  // (TorchSparse, MLSys 2022).
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
