#pragma once

// Compares the results of a compiled program with those of the interpreter of its graph.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_interpreter.h"

namespace voxserve {

// The rows of a value that a batch showed (RunOptions::on_value).
struct ShownValue {
  int64_t num_rows = 0;
  std::vector<float> values;  // [num_rows, channels]
};

// Returns options of a batch that copies each value when it is shown: by node, into `shown`.
inline RunOptions OptionsThatKeepValues(std::map<int, ShownValue>* shown) {
  return {.on_value = [shown](int node, const kernels::ConstRows& rows) {
    ShownValue value{.num_rows = rows.capacity};
    for (int64_t row = 0; row < rows.capacity; ++row) {
      value.values.insert(value.values.end(), rows.floats(row), rows.floats(row) + rows.channels);
    }
    EXPECT_TRUE(shown->emplace(node, std::move(value)).second) << "node " << node << " is shown twice";
    return absl::OkStatus();
  }};
}

// Expects the interpreter's rows of every value that a batch of one cloud showed. Rows of points without a voxel, which
// the interpreter lacks, are not compared.
inline void ExpectValues(const Graph& graph, const std::map<int, ShownValue>& shown, Interpreter& interpreter) {
  for (const auto& [node, value] : shown) {
    const GraphNode& of_node = graph.nodes[static_cast<size_t>(node)];
    SCOPED_TRACE(of_node.name);
    const Values& expected = interpreter.Evaluate(node);
    if (of_node.level == kPointLevel && static_cast<size_t>(value.num_rows) != expected.size()) continue;
    ASSERT_EQ(static_cast<size_t>(value.num_rows), expected.size());
    auto found = value.values.begin();
    for (const auto& [site, row] : expected) {
      for (const double number : row) {
        const double value_found = *found++;
        if (std::isfinite(number)) {
          ASSERT_NEAR(value_found, number, 1e-3 * std::max(1.0, std::abs(number)));
        } else {
          ASSERT_TRUE(value_found == number || (std::isnan(value_found) && std::isnan(number))) << value_found;
        }
      }
    }
    ASSERT_EQ(found, value.values.end());
  }
}

// Expects the interpreter's scores and labels for these points, and on a CPU its rows of every layer. Scores may differ
// by 1e-3 of the score, or by 1e-3 if that is more. Labels are compared where the best score is clear. The program runs
// in float32, for which each device has one dataflow. `map_search` and `max_grid_bytes` (the limit of kGrid's grid;
// kGrid with 0 must fall back to a hash table) matter only on the CPU: a GPU has one search.
inline void ExpectEqual(support::Device device, const Graph& graph, const Points& points,
                        kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
  const auto cloud = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  ASSERT_TRUE(cloud.ok());
  Variant variant{.device = device, .plan = {.map_search = map_search}};
  const auto runner = DeviceRunner::Create({.device = device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, variant);
  ASSERT_TRUE(program.ok()) << program.status();
  std::map<int, ShownValue> shown;
  const BatchReport output =
      (*runner)->Run(*program, {&*cloud}, true, {.max_grid_bytes = max_grid_bytes}, OptionsThatKeepValues(&shown));
  ASSERT_TRUE(output.status.ok()) << output.status;
  const bool asks_for_grid = device == support::Device::kCpu && map_search == kernels::MapSearch::kGrid;
  EXPECT_EQ(output.grid_fallbacks > 0, asks_for_grid && max_grid_bytes == 0);
  const InferResult& sample = output.samples[0];
  ASSERT_TRUE(sample.status.ok()) << sample.status;

  Interpreter interpreter(graph, points);
  EXPECT_EQ(shown.empty(), device == support::Device::kCuda);
  ExpectValues(graph, shown, interpreter);
  const int argmax = std::holds_alternative<ArgmaxOp>(graph.nodes[static_cast<size_t>(graph.labels_output)].op)
                         ? graph.labels_output
                         : graph.nodes[static_cast<size_t>(graph.labels_output)].inputs[0];
  const int labelled = graph.nodes[static_cast<size_t>(argmax)].inputs[0];
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(sample.scores().size(), points.size() * classes);
  ASSERT_EQ(sample.labels().size(), points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const std::optional<std::vector<double>> row = interpreter.EvaluateAt(graph.scores_output, i);
    for (size_t c = 0; c < classes; ++c) {
      const double expected = row ? (*row)[c] : 0.0;
      ASSERT_NEAR(sample.scores()[i * classes + c], expected, 1e-3 * std::max(1.0, std::abs(expected)))
          << i << " " << c;
    }
    if (!row) {
      EXPECT_EQ(sample.labels()[i], 255) << i;
      continue;
    }
    std::vector<double> values = *interpreter.EvaluateAt(labelled, i);
    const auto best = std::max_element(values.begin(), values.end());
    const auto label = best - values.begin();
    const double best_value = *best;
    *best = -std::numeric_limits<double>::infinity();
    const double second = *std::max_element(values.begin(), values.end());
    if (best_value - second > 1e-3 * std::max(1.0, std::abs(best_value))) {
      EXPECT_EQ(sample.labels()[i], label) << i;
    }
  }
}

// Expects equal scores whether the GPU makes the kernel maps of a cloud, or the CPU makes them because the GPU has too
// little memory. Tries limits of the GPU's memory from 96 MiB up, each larger than the one before by 1 / limit_steps,
// until the batch runs with the CPU's maps.
inline void ExpectEqualWithMapsOfTheCpu(const Graph& graph, const PointCloud& cloud, int64_t limit_steps) {
  const auto run = [&](int64_t limit) {
    BatchReport output;
    const auto runner = DeviceRunner::Create({.device = support::Device::kCuda, .device_memory_limit = limit});
    output.status = runner.status();
    if (!runner.ok()) return output;
    const auto program = (*runner)->Compile(graph, {.device = support::Device::kCuda, .plan = kDefaultCudaConvPlan});
    output.status = program.status();
    return program.ok() ? (*runner)->Run(*program, {&cloud}, true) : std::move(output);
  };
  const BatchReport expected = run(0);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_FALSE(expected.geometry_on_cpu);
  bool fell_back = false;
  for (int64_t limit = int64_t{96} << 20; limit < int64_t{8192} << 20 && !fell_back; limit += limit / limit_steps) {
    const BatchReport output = run(limit);
    if (!output.status.ok()) {
      ASSERT_EQ(ReasonOf(output.status), error_reason::kOutOfMemory) << output.status;
      continue;
    }
    ASSERT_TRUE(output.geometry_on_cpu) << "no limit was found under which the CPU has to help; last: " << limit;
    fell_back = true;
    const absl::Span<const float> scores = output.samples[0].scores();
    ASSERT_EQ(scores.size(), expected.samples[0].scores().size());
    for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], expected.samples[0].scores()[i], 1e-2f) << i;
  }
  EXPECT_TRUE(fell_back);
}

// Expects the same for two million random points in few voxels. The GPU reserves memory for two million voxels, because
// it does not know the number of voxels before it makes the maps. Under a low limit only the CPU can make them.
inline void ExpectEqualWithMapsOfTheCpu(const Graph& graph) {
  const auto& range_max = graph.voxelize_op().range_max;
  std::mt19937 random(60);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;
  for (int i = 0; i < 2'000'000; ++i) {
    for (size_t axis = 0; axis < 3; ++axis) values.push_back(unit(random) * range_max[axis]);
    values.push_back(unit(random));
  }
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), values.size() / 4);
  ExpectEqualWithMapsOfTheCpu(graph, cloud, /*limit_steps=*/4);
}

// Expects the interpreter's scores and labels for random points, with one point in each voxel.
inline void ExpectEqual(support::Device device, const Graph& graph, uint32_t seed,
                        kernels::MapSearch map_search = kernels::MapSearch::kMerge, int64_t max_grid_bytes = 1 << 20) {
  ExpectEqual(device, graph, RandomPoints(seed, graph.dimension), map_search, max_grid_bytes);
}

}  // namespace voxserve
