#pragma once

// These functions compute how much two rotated boxes overlap, seen from above (heights are ignored). The CPU and the
// GPU share this code. Files that include this header are compiled without fused multiply-add, so both devices round
// alike except in sine and cosine.

#include <algorithm>
#include <cmath>

#include "kernels/boxes/box_rows.h"

namespace voxserve::kernels {

// Returns the integral over x in [-half_length, half_length] of the y of the edge from (x0, y0) to (x1, y1), where y is
// limited to [-half_width, half_width]. The integral has the opposite sign if the edge runs towards lower x.
constexpr double CutEdgeIntegral(double x0, double y0, double x1, double y1, double half_length, double half_width) {
  const double from = std::clamp(x0, -half_length, half_length), to = std::clamp(x1, -half_length, half_length);
  if (from == to) return 0;
  const double slope = (y1 - y0) / (x1 - x0);
  const double start = y0 + slope * (from - x0), end = y0 + slope * (to - x0);
  const double low = std::min(start, end), high = std::max(start, end);
  if (low >= half_width) return (to - from) * half_width;
  if (high <= -half_width) return (to - from) * -half_width;
  if (low == high) return (to - from) * low;
  const double cut_low = std::max(low, -half_width), cut_high = std::min(high, half_width);
  const double below = cut_low - low, within = cut_high - cut_low, above = high - cut_high;
  const double sum = (above - below) * half_width + within * (0.5 * (cut_low + cut_high));
  return (to - from) * (sum / (high - low));
}

// Returns the area of the overlap of boxes a and b (rows of box_rows.h), in metres^2. In a's coordinates, this is the
// integral over x of the y of b's upper edges minus the integral of the y of b's lower edges, all limited to a. The
// corners of the overlap are never computed, so edges that coincide and corners on edges are no special cases.
constexpr double OverlapFromAbove(const float* a, const float* b) {
  const double half_length = 0.5 * a[kBoxLength], half_width = 0.5 * a[kBoxWidth];
  const double along = 0.5 * b[kBoxLength], across = 0.5 * b[kBoxWidth];
  const double a_yaw = a[kBoxYaw], turn = double{b[kBoxYaw]} - a_yaw;
  const double cos_a = std::cos(a_yaw), sin_a = std::sin(a_yaw), cos_b = std::cos(turn), sin_b = std::sin(turn);
  const double dx = double{b[kBoxX]} - double{a[kBoxX]}, dy = double{b[kBoxY]} - double{a[kBoxY]};
  const double x = dx * cos_a + dy * sin_a, y = dy * cos_a - dx * sin_a;
  const double length_x = along * cos_b, length_y = along * sin_b, width_x = across * -sin_b, width_y = across * cos_b;
  // The corners in counterclockwise order. The first is in front on the left.
  const double corner_x[4] = {x + length_x + width_x, x - length_x + width_x, x - length_x - width_x,
                              x + length_x - width_x};
  const double corner_y[4] = {y + length_y + width_y, y - length_y + width_y, y - length_y - width_y,
                              y + length_y - width_y};
  double sum = 0;  // upper edges run towards lower x
  for (int i = 0; i < 4; ++i) {
    const int next = (i + 1) % 4;
    sum -= CutEdgeIntegral(corner_x[i], corner_y[i], corner_x[next], corner_y[next], half_length, half_width);
  }
  constexpr double kRounding = 1e-12;  // share of a's area below which the sum is only the rounding of equal edges
  return sum > kRounding * (4 * half_length * half_width) ? sum : 0;
}

// Returns the intersection over union of two boxes, seen from above.
constexpr float IouFromAbove(const float* a, const float* b) {
  constexpr double kLeastUnion = 1e-8;  // OpenPCDet's constant; avoids a division by 0
  const double overlap = OverlapFromAbove(a, b);
  const double sum = double{a[kBoxLength]} * a[kBoxWidth] + double{b[kBoxLength]} * b[kBoxWidth];
  return static_cast<float>(overlap / std::max(sum - overlap, kLeastUnion));
}

// Returns the radius of the circle through a box's corners, seen from above.
constexpr float RadiusFromAbove(const float* box) {
  return 0.5f * std::sqrt(box[kBoxLength] * box[kBoxLength] + box[kBoxWidth] * box[kBoxWidth]);
}

// A cheap test: returns false only if the circles around the two boxes do not meet, so that the boxes cannot overlap.
constexpr bool MayOverlap(const float* a, float a_radius, const float* b, float b_radius) {
  const float dx = a[kBoxX] - b[kBoxX], dy = a[kBoxY] - b[kBoxY], radii = 1.0001f * (a_radius + b_radius);
  return !(dx * dx + dy * dy > radii * radii);
}

}  // namespace voxserve::kernels
