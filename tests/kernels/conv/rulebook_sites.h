#pragma once

// Turns a rulebook's pairs of rows into pairs of sites, which do not depend on the order of rows. Also checks the order
// of pairs and the tile_begin that kernels/conv/rulebook.h guarantees.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/conv/rulebook_search.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/kernels/coordinates/geometry_testing.h"

namespace voxserve::kernels::fixtures {

// Returns one PairSites for each pair, in the rulebook's order. in_keys and out_keys are the CoordinateKeys of the
// input and output rows.
inline std::vector<PairSites> SitesOf(const RulebookView& rulebook, const std::vector<uint64_t>& in_keys,
                                      const std::vector<uint64_t>& out_keys, int32_t dimension) {
  const CoordinateKey layout(dimension);
  std::vector<PairSites> sites;
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t pair = rulebook.offset_begin[k]; pair < rulebook.offset_begin[k + 1]; ++pair) {
      const uint64_t in = in_keys.at(static_cast<size_t>(rulebook.in_rows[pair]));
      const uint64_t out = out_keys.at(static_cast<size_t>(rulebook.out_rows[pair]));
      // Both sites of a pair must be in the same sample. Otherwise the pair gets sample -1, which no expected pair has,
      // so that the test fails.
      const int32_t sample = layout.Sample(in) == layout.Sample(out) ? layout.Sample(in) : -1;
      sites.emplace_back(k, sample, layout.Unpack(in), layout.Unpack(out));
    }
  }
  return sites;
}

// Checks the order of a rulebook's pairs, and its tile_begin. Returns the first violation, or "".
inline std::string RulebookFlaw(const RulebookView& view) {
  for (int32_t k = 0; k < view.num_offsets; ++k) {
    for (int64_t pair = view.offset_begin[k] + 1; pair < view.offset_begin[k + 1]; ++pair) {
      if (view.out_rows[pair] <= view.out_rows[pair - 1]) return "output rows of a cell do not ascend";
      if (view.in_rows[pair] <= view.in_rows[pair - 1]) return "input rows of a cell do not ascend";
    }
    for (int64_t tile = 0; tile <= view.num_tiles(); ++tile) {
      int64_t expected = view.offset_begin[k];
      while (expected < view.offset_begin[k + 1] && view.out_rows[expected] < tile * kRulebookTileRows) ++expected;
      if (view.tile_begin[tile * view.num_offsets + k] != expected) return "tile_begin is wrong";
    }
  }
  return "";
}

}  // namespace voxserve::kernels::fixtures
