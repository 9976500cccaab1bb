#pragma once

// Runs networks and compares their scores, for tests of what the compiler fuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "tests/engine/device_runner.h"

namespace voxserve {

// Returns the scores of a cloud. Expects that they do not change beside another cloud.
inline std::vector<float> ScoresOf(DeviceRunner& runner, const Program& program, const PointCloud& cloud) {
  const BatchReport report = runner.Run(program, {&cloud, &cloud}, /*return_scores=*/true);
  EXPECT_TRUE(report.status.ok()) << report.status;
  if (!report.status.ok()) return {};
  const absl::Span<const float> first = report.samples[0].scores(), second = report.samples[1].scores();
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin(), second.end())) << "a batch-mate changes a value";
  return {first.begin(), first.end()};
}

inline std::vector<float> ScoresOf(DeviceRunner& runner, const Graph& graph, const Variant& variant,
                                   const PointCloud& cloud) {
  const auto program = runner.Compile(graph, variant);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? ScoresOf(runner, *program, cloud) : std::vector<float>();
}

// Expects scores that differ by at most `share` of the largest one.
inline void ExpectNear(const std::vector<float>& scores, const std::vector<float>& expected, double share) {
  ASSERT_EQ(scores.size(), expected.size());
  double largest = 0;
  for (const float score : expected) largest = std::max<double>(largest, std::abs(score));
  for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], expected[i], share * largest) << i;
}

}  // namespace voxserve
