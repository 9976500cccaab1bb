#pragma once

// Makes clouds with the float32 fields x, y, z and intensity, for the tests of the client.

#include <cstdint>
#include <vector>

#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns one point for each value of `xs`, which is the point's x. y and z are 0, and intensity is 0.5.
inline PointCloud Cloud(const std::vector<float>& xs) {
  std::vector<float> points;
  for (const float x : xs) points.insert(points.end(), {x, 0, 0, 0.5f});
  return PointCloudFromFloats({"x", "y", "z", "intensity"}, points.data(), xs.size());
}

// Returns num_points points. The x of point i is i modulo 1000.
inline PointCloud CloudOf(uint64_t num_points) {
  std::vector<float> xs(num_points);
  for (uint64_t i = 0; i < num_points; ++i) xs[i] = static_cast<float>(i % 1000);
  return Cloud(xs);
}

}  // namespace voxserve::client
