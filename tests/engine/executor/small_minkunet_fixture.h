#pragma once

// SmallMinkUNetTest is the fixture of tests of how a GPU runs batches. It has a small MinkUNet in float16, compiled to
// be deterministic, so that tests can compare answers byte by byte. BoxOfPoints makes random points for this network.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/engine/program_fixture.h"
#include "tests/support/minkunet.h"

namespace voxserve {

// Returns random points, spread evenly over a box of `size` by `size` by 0.1 `size` metres.
inline PointCloud BoxOfPoints(int64_t num_points, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-0.5f, 0.5f);
  std::vector<float> points;
  for (int64_t i = 0; i < num_points; ++i) {
    points.insert(points.end(), {size * unit(random), size * unit(random), 0.1f * size * unit(random), unit(random)});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), static_cast<uint64_t>(num_points));
}

class SmallMinkUNetTest : public RunnerTest {
 protected:
  // Loads the network on a GPU. budget_bytes limits the host's memory; if it is 0, memory is counted but not limited.
  void Start(int64_t budget_bytes) {
    ASSERT_NO_FATAL_FAILURE(
        StartRunner({.device = support::Device::kCuda}, std::make_unique<MemoryBudget>(budget_bytes)));
    CompileInHalf(support::LoadNetwork(support::MinkUNet(
        {.width = 0.25, .num_classes = 7, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = 0.2f})));
  }
};

}  // namespace voxserve
