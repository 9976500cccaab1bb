#pragma once

// Tests of what the compiler fuses share this: parts of networks, counts of what is fused, and scores.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/compiler/compiler.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve {

// A part of a network.
struct FusionCase {
  std::string name;
  std::function<int(GraphBuilder& b, int in)> add;  // returns the part's result
  int num_fused;                                    // layers that others of it compute
};

// Returns how many layers are fused for a GPU and float16 alone. count(program): the steps that fusing makes fewer.
template <typename Count>
int CountFused(const Graph& graph, const Count& count) {
  const auto count_for = [&](bool on_cuda, DType dtype) {
    const Program program = Compile(graph, Plan(), {.on_cuda = on_cuda, .dtype = dtype});
    for (const Buffer& buffer : program.buffers) EXPECT_GE(buffer.first_step, 0) << "no step writes a buffer";
    return static_cast<int>(count(program));
  };
  const int num_steps = count_for(/*on_cuda=*/false, DType::kFloat32);
  EXPECT_EQ(count_for(/*on_cuda=*/true, DType::kFloat32), num_steps);
  return num_steps - count_for(/*on_cuda=*/true, DType::kFloat16);
}

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

// A GPU, a CPU, and a cloud for both. A test with one needs a GPU.
struct FusionDevices {
  explicit FusionDevices(uint32_t seed) : cloud(CloudOf(RandomScan(seed, 400))) {
    for (const auto& [runner, device] : {std::pair(&gpu, support::Device::kCuda), {&cpu, support::Device::kCpu}}) {
      auto created = DeviceRunner::Create({.device = device});
      EXPECT_TRUE(created.ok()) << created.status();
      if (created.ok()) *runner = *std::move(created);
    }
  }

  bool are_ready() const { return gpu != nullptr && cpu != nullptr; }
  std::vector<float> ScoresOnCpu(const Graph& graph) const {
    return ScoresOf(*cpu, graph, {.device = support::Device::kCpu}, cloud);
  }

  std::unique_ptr<DeviceRunner> gpu, cpu;
  PointCloud cloud;
};

// Expects scores that differ by at most `share` of the largest one.
inline void ExpectNear(const std::vector<float>& scores, const std::vector<float>& expected, double share) {
  ASSERT_EQ(scores.size(), expected.size());
  double largest = 0;
  for (const float score : expected) largest = std::max<double>(largest, std::abs(score));
  for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], expected[i], share * largest) << i;
}

}  // namespace voxserve
