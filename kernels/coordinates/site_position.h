#pragma once

// Converts coordinates of one level to positions among the sites of another. Each level counts in its own units, and
// the ratio of two units is a fraction per axis.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/floor_division.h"
#include "kernels/core/rounding.h"

namespace voxserve::kernels {

// A step of one level is multiplier / divisor steps of the other, per axis. Both numbers are at least 1.
struct SiteRatio {
  Axes multiplier = {1, 1, 1, 1};
  Axes divisor = {1, 1, 1, 1};
};

// A site, and the fraction of the way from it to the next one, 0 <= fraction < 1.
struct AxisPosition {
  int64_t site = 0;
  float fraction = 0;
};

// Returns floor(coordinate * multiplier / divisor).
constexpr int64_t SiteOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate) {
  return FloorDivide<int64_t>(coordinate * ratio.multiplier[axis], ratio.divisor[axis]);
}

// Returns the position of coordinate + fraction, with 0 <= fraction <= 1.
constexpr AxisPosition PositionOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate, float fraction) {
  const int64_t site = SiteOnAxis(ratio, axis, coordinate);
  const auto rest = static_cast<float>(coordinate * ratio.multiplier[axis] - site * ratio.divisor[axis]);
  const float steps =
      (rest + fraction * static_cast<float>(ratio.multiplier[axis])) / static_cast<float>(ratio.divisor[axis]);
  const float whole = Floor(steps);
  return {.site = site + static_cast<int64_t>(whole), .fraction = steps - whole};
}

}  // namespace voxserve::kernels
