#pragma once

// Makes points for the small graphs of graph_builder.h from a seed.

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tests/engine/executor/graph_builder.h"

namespace voxserve {

// Points with features x, y, z, f. Voxels are 1 m wide.
struct Points {
  std::vector<float> values;  // [n, 4]
  size_t size() const { return values.size() / 4; }
};

inline PointCloud CloudOf(const Points& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
}

// Returns a point at each site, with a random feature.
inline Points PointsAt(const std::set<Site>& sites, std::mt19937& random) {
  Points points;
  std::uniform_real_distribution<float> f(-1, 1);
  for (const Site& site : sites) {
    for (const int32_t c : site) points.values.push_back(static_cast<float>(c));
    points.values.push_back(f(random));
  }
  return points;
}

// Returns one point per voxel; its x, y, z are the site. If dimension is 2, all z are 0.
inline Points RandomPoints(uint32_t seed, int dimension = 3) {
  std::mt19937 random(seed);
  std::set<Site> sites = {{0, 0, 0}};  // the minimum is 0, so sites equal the points
  std::uniform_int_distribution<int32_t> x(0, 6), y(0, 4), z(0, dimension == 3 ? 3 : 0);
  for (int i = 0; i < 40; ++i) sites.insert({x(random), y(random), z(random)});
  return PointsAt(sites, random);
}

// Returns one point in each of num_sites random sites of the shape.
inline Points PointsOn(int num_sites, const kernels::Axes& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::set<Site> sites;
  while (sites.size() < static_cast<size_t>(num_sites)) {
    Site site;
    for (size_t axis = 0; axis < 3; ++axis) {
      site[axis] = static_cast<int32_t>(random() % static_cast<uint32_t>(shape[axis]));
    }
    sites.insert(site);
  }
  return PointsAt(sites, random);
}

// Returns points anywhere in the voxels' range, several in a voxel. Some points have no voxel: a coordinate is NaN or
// below the range, or is rounded to a site beyond the range. The first point is in the voxel at 0.
inline Points RandomScan(uint32_t seed, int num_points = 90) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(0, 1);
  Points points;
  for (int i = 0; i < num_points; ++i) {
    for (size_t axis = 0; axis < 3; ++axis) {
      const float extent = i == 0 ? 0.4f : static_cast<float>(kShape[axis]) * (i % 5 == 0 ? 0.5f : 1.0f);
      points.values.push_back(unit(random) * extent);
    }
    if (i % 11 == 3) points.values[points.values.size() - 2] = std::nanf("");
    if (i % 13 == 5) points.values[points.values.size() - 3] = -0.25f;
    points.values.push_back(2 * unit(random) - 1);
  }
  return points;
}

}  // namespace voxserve
