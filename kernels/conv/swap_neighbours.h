#pragma once

// Reverses the neighbours of a rulebook. An inverse convolution walks the pairs of the convolution that it names from
// output to input; a transposed convolution does so with the convolution that it transposes.

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SwapNeighboursParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, out_capacity] input row or -1, as SearchNeighbours makes it
  int64_t out_capacity = 0;             // below 2^31; in_capacity too
  const int64_t* num_out = nullptr;     // [1] on the device
  int64_t in_capacity = 0;

  // Output.
  int32_t* swapped = nullptr;  // [K, in_capacity] output row or -1, for all rows up to the capacity
  // Null, or for K <= kMostRowOffsets (neighbour_search.h): [in_capacity] zeros. Bit k is set for each row that has an
  // output row in offset k.
  uint32_t* row_offsets = nullptr;
};
static_assert(std::is_trivially_copyable_v<SwapNeighboursParams>);

namespace cuda {

// cudaErrorInvalidValue if row_offsets is set and K is above kMostRowOffsets.
cudaError_t SwapNeighbours(std::span<const SwapNeighboursParams> params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
