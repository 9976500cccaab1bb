#pragma once

// SiteWindows cuts the sites of a level of 3 axes into windows, and orders them window by window (H. Wang et al.,
// "DSVT: Dynamic Sparse Voxel Transformer with Rotated Sets", CVPR 2023; Z. Liu et al., "FlatFormer: Flattened Window
// Attention for Efficient Point Cloud Transformer", CVPR 2023). On an axis, a site is in window w = floor((coordinate +
// shift) / shape), at the place p = (coordinate + shift) mod shape.
//
// With axes (a, b, c) sites ascend by (w_c, w_b, w_a, p_a, p_b, p_c), the first the most significant. With a snake some
// of these descend: w_b where w_c is odd; w_a and p_a where w_b + w_c is; p_b where w_b + w_c + p_a is; p_c where w_b +
// w_c + p_a + p_b is.
//
// Pure functions, any thread, host and device.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxWindowShape = 4096;  // sites on an axis

struct SiteWindows {
  Axes shape = {1, 1, 1, 1};  // sites, 1 to kMaxWindowShape
  Axes shift = {0, 0, 0, 0};  // sites, 0 to shape - 1
  Axes axes = {0, 1, 2, 3};   // a, b and c
  bool is_snake = false;

  bool operator==(const SiteWindows&) const = default;
};

// Returns the sites that a window could have.
constexpr uint64_t WindowVolume(const SiteWindows& windows) {
  uint64_t volume = 1;
  for (int axis = 0; axis < 3; ++axis) volume *= static_cast<uint64_t>(windows.shape[axis]);
  return volume;
}

// Returns the windows of each axis that sites with coordinates in [0, extent) can be in. extent: at least 1.
constexpr Axes NumWindows(const SiteWindows& windows, const Axes& extent) {
  Axes count = {1, 1, 1, 1};
  for (int axis = 0; axis < 3; ++axis) {
    count[axis] = (extent[axis] - 1 + windows.shift[axis]) / windows.shape[axis] + 1;
  }
  return count;
}

// Returns the number of codes: each is less. Below 2^52 if every extent is at most 2^17.
constexpr uint64_t NumWindowCodes(const SiteWindows& windows, const Axes& num_windows) {
  uint64_t count = WindowVolume(windows);
  for (int axis = 0; axis < 3; ++axis) count *= static_cast<uint64_t>(num_windows[axis]);
  return count;
}

// Returns a site's code, which ascends in the windows' order. Codes / WindowVolume are numbers of windows. The site's
// coordinates are not negative; num_windows are those of an extent that the site is within. A larger extent changes the
// codes, but not the order.
constexpr uint64_t WindowCode(const SiteWindows& windows, const Axes& num_windows, const Axes& site) {
  uint32_t window[3] = {}, place[3] = {}, count[3] = {}, shape[3] = {};  // of a, b and c
  for (int i = 0; i < 3; ++i) {
    const int32_t axis = windows.axes[i];
    const auto moved = static_cast<uint32_t>(site[axis] + windows.shift[axis]);
    shape[i] = static_cast<uint32_t>(windows.shape[axis]);
    count[i] = static_cast<uint32_t>(num_windows[axis]);
    window[i] = moved / shape[i];
    place[i] = moved - window[i] * shape[i];
  }
  if (windows.is_snake) {
    const uint32_t row = window[1] + window[2], line = row + place[0], point = line + place[1];
    if (window[2] % 2 != 0) window[1] = count[1] - 1 - window[1];
    if (row % 2 != 0) {
      window[0] = count[0] - 1 - window[0];
      place[0] = shape[0] - 1 - place[0];
    }
    if (line % 2 != 0) place[1] = shape[1] - 1 - place[1];
    if (point % 2 != 0) place[2] = shape[2] - 1 - place[2];
  }
  uint64_t code = (uint64_t{window[2]} * count[1] + window[1]) * count[0] + window[0];
  code = (code * shape[0] + place[0]) * shape[1] + place[1];
  return code * shape[2] + place[2];
}

}  // namespace voxserve::kernels
