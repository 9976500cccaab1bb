#pragma once

// A rulebook in its neighbours form: for every kernel offset k and output row o the input row that o reads, as
// kernels/coordinates/neighbour_search.h finds it. An inverse convolution's is turned round by swap_neighbours.h.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

// A view of device memory; whoever made the rulebook owns it.
struct NeighboursView {
  int32_t num_offsets = 0;        // K
  const int32_t* rows = nullptr;  // [K, pitch] the input row, or -1
  int64_t pitch = 0;
  int64_t num_in_rows = 0;
  int64_t num_out_rows = 0;
  int32_t identity_offset = -1;  // whose neighbour of o is o, for all rows; -1: none
};
static_assert(std::is_trivially_copyable_v<NeighboursView>);

}  // namespace voxserve::kernels
