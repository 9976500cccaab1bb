#pragma once

// Where coordinates of one level lie among the sites of another: levels count in units of their own, whose ratio is a
// fraction per axis.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/floor_division.h"
#include "kernels/core/rounding.h"

namespace voxserve::kernels {

// A step of the one level is multiplier / divisor steps of the other, per axis. Both are 1 or more.
struct SiteRatio {
  Axes multiplier = {1, 1, 1, 1};
  Axes divisor = {1, 1, 1, 1};
};

// `site` and the part of the way from there to the next one, 0 <= fraction < 1.
struct AxisPosition {
  int64_t site = 0;
  float fraction = 0;
};

// floor(coordinate * multiplier / divisor).
constexpr int64_t SiteOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate) {
  return FloorDivide<int64_t>(coordinate * ratio.multiplier[axis], ratio.divisor[axis]);
}

// The same of coordinate + fraction, with 0 <= fraction <= 1.
constexpr AxisPosition PositionOnAxis(const SiteRatio& ratio, int axis, int64_t coordinate, float fraction) {
  const int64_t site = SiteOnAxis(ratio, axis, coordinate);
  const auto rest = static_cast<float>(coordinate * ratio.multiplier[axis] - site * ratio.divisor[axis]);
  const float steps =
      (rest + fraction * static_cast<float>(ratio.multiplier[axis])) / static_cast<float>(ratio.divisor[axis]);
  const float whole = Floor(steps);
  return {.site = site + static_cast<int64_t>(whole), .fraction = steps - whole};
}

}  // namespace voxserve::kernels
