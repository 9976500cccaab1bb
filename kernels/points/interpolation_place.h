#pragma once

// These functions compute where a position of interpolation_weights.h lies between sites, on both devices.

#include <cstdint>

#include "kernels/points/interpolation_weights.h"

namespace voxserve::kernels {

// Added to the sum of the weights, so that a position without a neighbour divides by something.
inline constexpr float kWeightEpsilon = 1e-8F;

// coordinate: that of the position's site, or of the point's voxel. position: the point's axes; null for sites.
constexpr AxisPosition PlaceOnAxis(const InterpolationWeightsParams& params, int axis, int64_t coordinate,
                                   const float* position) {
  if (position == nullptr) return PositionOnAxis(params.ratio, axis, coordinate, 0.0F);
  const float cells = (position[axis] - params.shift[axis]) / params.voxel_size[axis];
  const float floor = Floor(cells);
  // The voxel's coordinate is the rounded position, moved to the sample's origin.
  const float rounded = params.rounding == VoxelRounding::kHalfEven ? RoundHalfEven(cells) : floor;
  return PositionOnAxis(params.ratio, axis, coordinate - (rounded > floor ? 1 : 0), cells - floor);
}

// Returns whether neighbour number `neighbour` is the higher one on this axis.
constexpr bool IsHigher(int32_t dimension, int32_t neighbour, int axis) {
  return (neighbour >> (dimension - 1 - axis) & 1) != 0;
}

}  // namespace voxserve::kernels
