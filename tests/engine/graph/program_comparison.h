#pragma once

// A compiled program beside the interpreter of its graph.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/graph/graph_interpreter.h"

namespace voxserve {

// On the CPU with any dataflow and search; on a GPU in float32 with what it has of them.
inline void ExpectEqual(support::Device device, const Graph& graph, const Points& points, Dataflow dataflow,
                        kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
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
  const int argmax = std::holds_alternative<ArgmaxOp>(graph.nodes[static_cast<size_t>(graph.labels_output)].op)
                         ? graph.labels_output
                         : graph.nodes[static_cast<size_t>(graph.labels_output)].inputs[0];
  const int labelled = graph.nodes[static_cast<size_t>(argmax)].inputs[0];
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(sample.scores.size(), points.size() * classes);
  ASSERT_EQ(sample.labels.size(), points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const std::optional<std::vector<double>> row = interpreter.EvaluateAt(graph.scores_output, i);
    for (size_t c = 0; c < classes; ++c) {
      const double expected = row ? (*row)[c] : 0.0;
      ASSERT_NEAR(sample.scores[i * classes + c], expected, 1e-3 * std::max(1.0, std::abs(expected))) << i << " " << c;
    }
    if (!row) {
      EXPECT_EQ(sample.labels[i], 255) << i;
      continue;
    }
    std::vector<double> values = *interpreter.EvaluateAt(labelled, i);
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

// Of one point a voxel.
inline void ExpectEqual(support::Device device, const Graph& graph, uint32_t seed, Dataflow dataflow,
                        kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
  ExpectEqual(device, graph, RandomPoints(seed), dataflow, map_search, max_grid_bytes);
}

}  // namespace voxserve
