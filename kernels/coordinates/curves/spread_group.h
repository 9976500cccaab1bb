#pragma once

// SpreadGroup is a group of attention in a window (H. Wang et al., "DSVT", CVPR 2023). A window of n sites is cut into
// s = ceil(n / K) groups of about as many sites. Entry i < K of group j is the place floor((j K + i) n / (s K)) of the
// window. Entries go up by at most 1, so a group is a run of places, some of them entered twice; these count once. The
// last place of a group can be the first of the next, and then belongs to the first of both.
//
// Pure functions, any thread, host and device.

#include <cstdint>

namespace voxserve::kernels {

// Places of an order of sites.
struct SpreadGroup {
  int32_t begin = 0;      // keys and values are those of [begin, end)
  int32_t own_begin = 0;  // queries and results are those of [own_begin, end)
  int32_t end = 0;
};

// Returns the number of groups of a window.
constexpr int32_t NumSpreadGroups(int32_t num_sites, int32_t size) { return (num_sites - 1) / size + 1; }

// Returns group j of a window of num_sites > 0 sites, the first at `window_begin`. size: K.
constexpr SpreadGroup SpreadGroupAt(int32_t window_begin, int32_t num_sites, int32_t size, int32_t j) {
  const int64_t n = num_sites, num_entries = int64_t{NumSpreadGroups(num_sites, size)} * size;
  const auto place = [&](int64_t entry) { return static_cast<int32_t>(entry * n / num_entries); };
  const int64_t first = int64_t{j} * size;
  return {.begin = window_begin + place(first),
          .own_begin = window_begin + (j == 0 ? 0 : place(first - 1) + 1),
          .end = window_begin + place(first + size - 1) + 1};
}

// Returns the group that has the result of site r of a window.
constexpr int32_t SpreadGroupOf(int32_t num_sites, int32_t size, int32_t r) {
  const int64_t n = num_sites, num_entries = int64_t{NumSpreadGroups(num_sites, size)} * size;
  const int64_t entry = (r * num_entries + n - 1) / n;  // the first entry that is r or a later site
  return static_cast<int32_t>(entry / size);
}

}  // namespace voxserve::kernels
