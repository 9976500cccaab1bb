#pragma once

// These functions compute where a position of interpolation_weights.h lies between sites. Both devices share this code.

#include <cstdint>

#include "kernels/points/interpolation_weights.h"

namespace voxserve::kernels {

// This is added to the sum of the weights, so that a position without neighbours does not divide by 0.
inline constexpr float kWeightEpsilon = 1e-8F;

// Returns a position's place on one axis of the level. If the position is a site, `coordinate` is the site's and
// `position` is null. If it is a point, `coordinate` is that of the point's voxel and `position` has the point's axes.
constexpr AxisPosition PlaceOnAxis(const InterpolationWeightsParams& params, int axis, int64_t coordinate,
                                   const float* position) {
  if (position == nullptr) return PositionOnAxis(params.ratio, axis, coordinate, 0.0F);
  const float cells = (position[axis] - params.shift[axis]) / params.voxel_size[axis];
  const float floor = Floor(cells);
  // The voxel's coordinate is the rounded position minus the sample's origin.
  const float rounded = params.rounding == VoxelRounding::kHalfEven ? RoundHalfEven(cells) : floor;
  return PositionOnAxis(params.ratio, axis, coordinate - (rounded > floor ? 1 : 0), cells - floor);
}

// Returns true if neighbour number `neighbour` is the higher of the two sites around the position on this axis.
constexpr bool IsHigher(int32_t dimension, int32_t neighbour, int axis) {
  return (neighbour >> (dimension - 1 - axis) & 1) != 0;
}

}  // namespace voxserve::kernels
