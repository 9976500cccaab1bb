#pragma once

// These functions convert coordinates of one level to positions among the sites of another level. A level is the list
// of the sites of a batch at one unit. Each level counts coordinates in its own unit, and the ratio of two units is a
// fraction per axis.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/floor_division.h"
#include "kernels/core/floats.h"

namespace voxserve::kernels {

// One unit of the first level is multiplier / divisor units of the second level, per axis. Both numbers are at least 1.
struct SiteRatio {
  Axes multiplier = {1, 1, 1, 1};
  Axes divisor = {1, 1, 1, 1};
};

// A position on one axis, between the sites `site` and `site` + 1: `site` + fraction, with 0 <= fraction < 1.
struct AxisPosition {
  int64_t site = 0;
  float fraction = 0;
};

// Converts a coordinate of the first level to the second level: floor(coordinate * multiplier / divisor).
constexpr int64_t SiteOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate) {
  return FloorDivide<int64_t>(coordinate * ratio.multiplier[axis], ratio.divisor[axis]);
}

// Converts coordinate + fraction of the first level, with 0 <= fraction <= 1, to a position on the second level.
constexpr AxisPosition PositionOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate, float fraction) {
  const int64_t site = SiteOnAxis(ratio, axis, coordinate);
  const auto rest = static_cast<float>(coordinate * ratio.multiplier[axis] - site * ratio.divisor[axis]);
  const float steps =
      (rest + fraction * static_cast<float>(ratio.multiplier[axis])) / static_cast<float>(ratio.divisor[axis]);
  const float whole = Floor(steps);
  return {.site = site + static_cast<int64_t>(whole), .fraction = steps - whole};
}

}  // namespace voxserve::kernels
