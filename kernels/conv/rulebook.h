#pragma once

// A rulebook (kernel map) says which input rows each output row of a sparse convolution reads. This is its pairs form:
// for every kernel offset k, the list of the pairs (input row, output row) that the offset connects. The CPU's dataflow
// reads this form.
//
// The pairs of an offset are in ascending order of output rows. They are then also in ascending order of input rows,
// because rows are in canonical order (by sample, then by coordinates, first axis first) and an offset is a
// translation. Each output row and each input row occurs at most once in an offset.
//
// Output rows are cut into tiles of kRulebookTileRows. tile_begin says, without a search, where the pairs of an offset
// within a range of tiles are. A CPU kernel that computes block after block of output rows (fetch_on_demand.h) reads
// the rulebook this way.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

inline constexpr int64_t kRulebookTileRows = 64;

// A view of host memory. The code that made the rulebook owns the arrays.
struct RulebookView {
  int32_t num_offsets = 0;  // K
  int64_t num_out_rows = 0;
  int64_t num_in_rows = 0;
  const int64_t* offset_begin = nullptr;  // [K + 1] first pair of each offset, ascending; [K] is the number of pairs
  const int32_t* in_rows = nullptr;       // [num_pairs]
  const int32_t* out_rows = nullptr;      // [num_pairs]
  const int64_t* tile_begin = nullptr;    // [num_tiles + 1, K] first pair of offset k whose output row is in tile t or
                                          // later; num_tiles = ceil(num_out_rows / kRulebookTileRows)

  int64_t num_pairs() const { return num_offsets == 0 ? 0 : offset_begin[num_offsets]; }
  int64_t num_tiles() const { return (num_out_rows + kRulebookTileRows - 1) / kRulebookTileRows; }
};
static_assert(std::is_trivially_copyable_v<RulebookView>);

}  // namespace voxserve::kernels
