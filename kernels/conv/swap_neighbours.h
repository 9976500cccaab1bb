#pragma once

// Swaps inputs and outputs in the neighbours form of a rulebook (neighbours.h), on the GPU. An inverse convolution
// reads the swapped table of its partner, the strided convolution that it undoes (paired_with in a model file). A
// transposed convolution reads the swapped table of the strided convolution from its output sites to its input sites.
// DeviceRulebooks calls this function once for all rulebooks of a batch. Where the kernel's cells are blocks
// (CellsAreBlocks) and only tiles are read, SearchNeighbours writes what the swapped tiles are made from instead.

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SwapNeighboursParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, out_capacity] input row or -1, as SearchNeighbours makes it
  int64_t out_capacity = 0;             // in rows; below 2^31, like in_capacity
  const int64_t* num_out = nullptr;     // [1] the number of output rows, on the device
  int64_t in_capacity = 0;

  // Output.
  int32_t* swapped = nullptr;  // [K, in_capacity] output row or -1; every row up to the capacity is written
  // [in_capacity] one mask per input row, or null; not written if K is 0. Bit k of a mask is set if the input row has
  // an output row at offset k. Masks need K <= kRowMaskBits (neighbour_search.h).
  uint32_t* row_masks = nullptr;
};
static_assert(std::is_trivially_copyable_v<SwapNeighboursParams>);

namespace cuda {

// Queues the kernels on `stream`. Returns cudaErrorInvalidValue if row_masks is set and K is above kRowMaskBits.
cudaError_t SwapNeighbours(std::span<const SwapNeighboursParams> params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
