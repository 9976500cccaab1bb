#pragma once

// The neighbours form of a rulebook (rulebook.h), in GPU memory: a table that holds, for every kernel offset k and
// output row o, the input row that o reads at offset k. kernels/coordinates/neighbour_search.h makes the table.
// swap_neighbours.h makes the table of an inverse convolution from it.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

// A view of device memory. The code that made the rulebook owns the memory.
struct NeighboursView {
  int32_t num_offsets = 0;        // K
  const int32_t* rows = nullptr;  // [K, pitch] the input row, or -1: o reads no row at offset k
  int64_t pitch = 0;              // values from one offset to the next; at least num_out_rows
  int64_t num_in_rows = 0;
  int64_t num_out_rows = 0;
  int32_t identity_offset = -1;  // the offset at which every output row o reads input row o; -1: none
};
static_assert(std::is_trivially_copyable_v<NeighboursView>);

}  // namespace voxserve::kernels
