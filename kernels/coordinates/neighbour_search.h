#pragma once

// SearchNeighbours is the kernel map search on the GPU: for every output row and kernel cell, it finds the input row
// that the output reads.
//
// Output o reads input i through cell k if in[i] = stride * out[o] + Delta(k) (conv_geometry.h). A thread searches for
// one output row and up to 32 cells, or for all cells of a box that reaches few bricks. Rows are in Morton order, so
// the look-ups of a warp are near each other, and cells near each other read the same few bricks (brick_table.h). If
// the cells of an output are exactly the block of sites i with floor(i / stride) = o, its inputs are consecutive rows.
// They are then known from OutputCoordinates, and nothing is looked up. The swapped rulebook, from outputs to inputs,
// is then known too.
//
// One call searches several rulebooks together, since small levels alone do not fill a GPU.

#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int32_t kRowMaskBits = 32;  // bits of a row's word in row_masks

// Returns the pitch of row_inputs in values. It is a multiple of 8, and that many values are written together: a sector
// of memory. A GPU that reads a sector of which only a part was written has to fetch the rest from memory first.
constexpr int64_t RowInputsPitch(int32_t num_offsets) { return (int64_t{num_offsets} + 7) / 8 * 8; }

struct NeighbourSearchParams {
  ConvGeometry geometry;   // |Delta| <= kCoordinateMargin
  cuda::BrickTable table;  // table of the inputs' keys; not read if first_in_rows is set
  int32_t dimension = 3;
  const uint64_t* out_keys = nullptr;  // [out_capacity] MortonKeys
  int64_t out_capacity = 0;            // below 2^31
  const int64_t* num_out = nullptr;    // [1] in device memory; null: out_capacity

  // May be set only if CellsAreBlocks(geometry): OutputCoordinatesParams::first_in_rows of the call that made out_keys
  // with this stride. in_keys, in_capacity and num_in must then be set too. Null: `table` is searched.
  const int32_t* first_in_rows = nullptr;  // [out_capacity]
  const uint64_t* in_keys = nullptr;       // [in_capacity]
  int64_t in_capacity = 0;
  const int64_t* num_in = nullptr;

  // Output: [K, out_capacity] the input row, or -1 if there is none. Values after the first num_out rows are
  // undefined. Null if row_inputs is set, or if only the swapped outputs are wanted.
  int32_t* neighbours = nullptr;
  // Output: [out_capacity] bit k of a row is set if the row has an input through cell k. May be set only if
  // K <= kRowMaskBits.
  uint32_t* row_masks = nullptr;
  // Output, in place of `neighbours`: [out_capacity, RowInputsPitch(K)] each row's existing input rows in ascending
  // order of their cells; row_masks says which cells. 32-byte aligned. May be set only with row_masks and without
  // first_in_rows. Most rows have few inputs, so a kernel that reads rows in random order reads less memory from these
  // lists than from `neighbours`.
  int32_t* row_inputs = nullptr;

  // Outputs, both or none, only with first_in_rows and K <= kRowMaskBits: the swapped rulebook, in which every input
  // row reads one output row through one cell. Not written if there are no output rows.
  uint32_t* swapped_row_masks = nullptr;  // [in_capacity] the bit of the cell
  int32_t* swapped_row_inputs = nullptr;  // [in_capacity] the output row
};
static_assert(std::is_trivially_copyable_v<NeighbourSearchParams>);

// Returns true if output o's cells are the block of sites i with floor(i / stride) = o, and the stride is the same
// power of two on all axes.
constexpr bool CellsAreBlocks(const ConvGeometry& geometry) {
  if (geometry.num_listed_cells > 0) return false;
  for (int axis = 0; axis < geometry.dimension; ++axis) {
    if (geometry.stride[axis] != geometry.stride[0] || geometry.kernel_size[axis] != geometry.stride[axis] ||
        geometry.dilation[axis] != 1 || geometry.padding[axis] != 0) {
      return false;
    }
  }
  return std::has_single_bit(static_cast<uint32_t>(geometry.stride[0]));
}

namespace cuda {

// Returns cudaErrorInvalidValue if
// - the params, geometries or tables (if read) do not all have the same dimension;
// - row_masks is set and K > kRowMaskBits;
// - row_inputs or a swapped output is set without the members that it needs.
cudaError_t SearchNeighbours(std::span<const NeighbourSearchParams> params, cudaStream_t stream);
inline cudaError_t SearchNeighbours(const NeighbourSearchParams& params, cudaStream_t stream) {
  return SearchNeighbours({&params, 1}, stream);
}

}  // namespace cuda
}  // namespace voxserve::kernels
