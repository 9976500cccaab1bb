#pragma once

// Map search on the GPU: for every output row and every cell of the kernel, the input row that it reads.
//
// Output o reads input i through cell k where in[i] = stride * out[o] + Delta(k). A thread takes one output row and up
// to 32 cells: rows are in Morton order, so a warp's look-ups are near each other, and cells that lie near each other
// are read from the same few bricks (brick_table.h). Where the cells of an output are the block of sites that it was
// divided from, its inputs are consecutive rows, and nothing is looked up.
//
// All rulebooks of a network are searched together: small levels do not fill a GPU.

#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int32_t kMostRowOffsets = 32;  // bits of a row's offsets

// Values from a row of row_inputs to the next: 16 bytes are written at once.
constexpr int64_t RowInputsPitch(int32_t num_offsets) { return (int64_t{num_offsets} + 3) / 4 * 4; }

struct NeighbourSearchParams {
  ConvGeometry geometry;   // |Delta| <= kCoordinateMargin
  cuda::BrickTable table;  // over the input keys; not read where first_in_rows is there
  int32_t dimension = 3;
  const uint64_t* out_keys = nullptr;  // [out_capacity] MortonKeys
  int64_t out_capacity = 0;            // below 2^31
  const int64_t* num_out = nullptr;

  // Null, or for CellsAreBlocks(geometry) as OutputCoordinates made it together with out_keys, by this stride; then the
  // inputs too.
  const int32_t* first_in_rows = nullptr;  // [out_capacity]
  const uint64_t* in_keys = nullptr;       // [in_capacity]
  int64_t in_capacity = 0;
  const int64_t* num_in = nullptr;

  // [K, out_capacity] input row, or -1. Of rows past num_out nothing is promised. Null where row_inputs are there.
  int32_t* neighbours = nullptr;
  // Null, or for K <= kMostRowOffsets: [out_capacity] bit k of a row says that it has input row k.
  uint32_t* row_offsets = nullptr;
  // Null, or for K <= kMostRowOffsets where row_offsets are there and first_in_rows are not: [out_capacity,
  // RowInputsPitch(K)] a row's input rows one behind the other, ascending by their offsets; 16-byte aligned. Few rows
  // have many of them, so that who reads rows in any order reads less than of neighbours.
  int32_t* row_inputs = nullptr;
};
static_assert(std::is_trivially_copyable_v<NeighbourSearchParams>);

// True where output o's cells are the block of sites i with floor(i / stride) = o, and stride is one power of two.
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

// cudaErrorInvalidValue unless all params, their geometries, and their tables where those are read, are of one
// dimension, and row_offsets are null where K > kMostRowOffsets; and where row_inputs are there without what they need.
cudaError_t SearchNeighbours(std::span<const NeighbourSearchParams> params, cudaStream_t stream);
inline cudaError_t SearchNeighbours(const NeighbourSearchParams& params, cudaStream_t stream) {
  return SearchNeighbours({&params, 1}, stream);
}

}  // namespace cuda
}  // namespace voxserve::kernels
