#pragma once

// A compiled program beside the interpreter of its graph.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/graph/graph_interpreter.h"

namespace voxserve {

// On the CPU with any dataflow and search; on a GPU in float32 with what it has of them.
inline void ExpectEqual(support::Device device, const Graph& graph, uint32_t seed, Dataflow dataflow,
                        kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
  const Points points = RandomPoints(seed);
  const auto cloud = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  ASSERT_TRUE(cloud.ok());
  Variant variant{.device = device, .plan = {.map_search = map_search, .dataflow = dataflow}};
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, variant);
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchOutput output = (*runner)->Run(*program, {&*cloud}, true, {.max_grid_bytes = max_grid_bytes});
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.grid_fallbacks > 0, map_search == kernels::MapSearch::kGrid && max_grid_bytes == 0);
  const SampleOutput& sample = output.samples[0];
  ASSERT_TRUE(sample.status.ok()) << sample.status;

  Interpreter interpreter(graph, points);
  const auto input_of = [&](int node) { return graph.nodes[static_cast<size_t>(node)].inputs[0]; };
  const Values expected = interpreter.Evaluate(input_of(graph.scores_output));
  const Values labelled = interpreter.Evaluate(input_of(input_of(graph.labels_output)));
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(sample.scores.size(), points.size() * classes);
  for (size_t i = 0; i < points.size(); ++i) {
    const float* p = points.values.data() + i * 4;
    const Site site = {static_cast<int32_t>(p[0]), static_cast<int32_t>(p[1]), static_cast<int32_t>(p[2])};
    const std::vector<double>& row = expected.at(site);
    for (size_t c = 0; c < classes; ++c) {
      ASSERT_NEAR(sample.scores[i * classes + c], row[c], 1e-3 * std::max(1.0, std::abs(row[c]))) << i << " " << c;
    }
    std::vector<double> values = labelled.at(site);
    const auto best = std::max_element(values.begin(), values.end());
    const auto label = best - values.begin();
    const double best_value = *best;
    *best = -std::numeric_limits<double>::infinity();
    const double second = *std::max_element(values.begin(), values.end());
    if (best_value - second > 1e-3 * std::max(1.0, std::abs(best_value))) {
      EXPECT_EQ(sample.labels[i], label) << i;
    }
  }
}

}  // namespace voxserve
