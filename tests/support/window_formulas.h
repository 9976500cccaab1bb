#pragma once

// The oracle for orders of sites by windows, and for groups that are spread over windows. It follows model.proto's
// definition (Groups) word by word, and shares no code with the kernels.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace voxserve::support {

struct DefinedWindows {
  std::array<int32_t, 3> shape, shift;
  std::array<size_t, 3> axes = {0, 1, 2};
  bool is_snake = false;
};

// Returns what sites are ordered by: (w_c, w_b, w_a, p_a, p_b, p_c), where numbers that descend are negative.
inline std::array<int64_t, 6> DefinedWindowPlace(const DefinedWindows& windows, const std::array<int32_t, 3>& site) {
  int64_t w[3], p[3];  // of the axes a, b and c
  for (size_t i = 0; i < 3; ++i) {
    const size_t axis = windows.axes[i];
    const int64_t moved = int64_t{site[axis]} + windows.shift[axis];
    w[i] = moved / windows.shape[axis];
    p[i] = moved % windows.shape[axis];
  }
  const auto turned = [&](int64_t value, int64_t number) {
    return windows.is_snake && number % 2 == 1 ? -value : value;
  };
  return {w[2],
          turned(w[1], w[2]),
          turned(w[0], w[1] + w[2]),
          turned(p[0], w[1] + w[2]),
          turned(p[1], w[1] + w[2] + p[0]),
          turned(p[2], w[1] + w[2] + p[0] + p[1])};
}

// Returns the number of the window of a site, as three numbers.
inline std::array<int32_t, 3> DefinedWindow(const DefinedWindows& windows, const std::array<int32_t, 3>& site) {
  std::array<int32_t, 3> window;
  for (size_t axis = 0; axis < 3; ++axis) window[axis] = (site[axis] + windows.shift[axis]) / windows.shape[axis];
  return window;
}

struct DefinedGroup {
  std::vector<int64_t> own;   // places whose results are those of this group
  std::vector<int64_t> keys;  // places
};

// Returns the groups of a window of n sites with K = size.
inline std::vector<DefinedGroup> DefinedSpreadGroups(int64_t n, int64_t size) {
  std::vector<DefinedGroup> groups;
  std::vector<bool> has_result(static_cast<size_t>(n), false);
  const int64_t s = (n + size - 1) / size;
  for (int64_t j = 0; j < s; ++j) {
    DefinedGroup group;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = (j * size + i) * n / (s * size);
      if (std::find(group.keys.begin(), group.keys.end(), place) != group.keys.end()) continue;
      group.keys.push_back(place);
      if (has_result[static_cast<size_t>(place)]) continue;
      has_result[static_cast<size_t>(place)] = true;
      group.own.push_back(place);
    }
    groups.push_back(group);
  }
  return groups;
}

}  // namespace voxserve::support
