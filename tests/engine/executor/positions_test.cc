// Tests positions of sites in networks: rotary by coordinates and by positions, site_position and its pools. They are
// compared with an interpreter of graphs, and with loops over the points. Positions stay float32 in 16-bit networks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/compiler/compiler.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/position_network.h"
#include "tests/engine/executor/program_comparison.h"

namespace voxserve::positions_test {
namespace {

using kernels::PoolReduce;

class PositionsTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, PositionsTest, support::AllDevices(), support::DeviceName);

TEST_P(PositionsTest, RotationsByCoordinatesOfTwoLevels) {
  for (const int num_heads : {1, 2}) {
    GraphBuilder b(static_cast<uint32_t>(num_heads));
    const int stem = b.Submanifold(0, 12, true);
    const int fine = b.Attention(b.Rotary(b.Linear(stem, 12, true), num_heads, 100),
                                 b.Rotary(b.Linear(stem, 12, false), num_heads, 100), stem, num_heads, 0.5f);
    const int down = b.Down(b.Relu(b.Norm(fine)), 6);
    const int coarse = b.Rotary(b.Relu(b.Norm(down)), 1, 10);
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({b.Up(coarse, down, 6), b.Rotary(fine, 2, 3)}), 3, true)), 1);
  }
}

TEST_P(PositionsTest, RotationsInTwoAxes) {
  GraphBuilder b(20, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const int stem = b.Linear(0, 12, true);
  const int by_position = b.Rotary(stem, 3, 10, b.SitePosition({.is_from_minimum = true, .scale = {3, 4}}));
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({by_position, b.Rotary(stem, 1, 100)}), 3, true)), 20);
}

// Points are anywhere in their voxels, and some have no voxel. The scale makes angles of hundreds of radians.
TEST_P(PositionsTest, RotationsByPositionsOfPoints) {
  uint32_t seed = 30;
  for (const bool is_mean : {false, true}) {
    for (const bool is_from_minimum : {false, true}) {
      for (const float scale : {1.0f, 100.0f}) {
        GraphBuilder b(++seed);
        b.Floor();
        const int position = b.SitePosition({.is_mean = is_mean,
                                             .is_from_minimum = is_from_minimum,
                                             .scale = {scale, -scale, 2 * scale},
                                             .shift = {0, 1, -2}});
        const int stem = b.Submanifold(0, 18, true);
        const int rotated = b.Rotary(stem, 1, 10, position);
        ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({rotated, stem}), 3, true)), RandomScan(seed));
      }
    }
  }
}

TEST_P(PositionsTest, PoolsOfPositions) {
  GraphBuilder b(50);
  b.Floor();
  const int position = b.SitePosition({.is_mean = true, .scale = {5, 5, 5}});
  const int down = b.Down(b.Submanifold(0, 8, true), 12);
  const int coarse = b.PoolDown(position, PoolReduce::kAverage);
  const int rotated = b.Rotary(down, 2, 10, coarse);
  const int back = b.Rotary(b.Up(rotated, down, 6), 1, 10, b.Unpool(coarse, down, PoolReduce::kAverage));
  ExpectEqual(GetParam(), b.Finish(b.Linear(back, 3, true)), RandomScan(50));
}

// Positions as features: of a linear layer, a sum, a product, concatenations and outputs.
TEST_P(PositionsTest, PositionsAsFeatures) {
  GraphBuilder b(60);
  b.Floor();
  const int position = b.SitePosition({.is_mean = true, .is_from_minimum = true});
  const int coarse = b.PoolDown(position, PoolReduce::kMax);
  const int stem = b.Linear(position, 3, true);
  const int mixed = b.Concat({b.Sum(b.Relu(stem), position), b.Multiply(position, stem), position});
  const int down = b.Down(mixed, 4);
  const int up = b.Up(b.Concat({coarse, down}), down, 4);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({up, position}), 3, true)), RandomScan(60));
}

TEST_P(PositionsTest, EveryOperatorOfThePositionNetwork) {
  const absl::StatusOr<Graph> graph = LoadTestGraph(PositionNetwork());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  constexpr auto kPrecision = ModelConfig::Precision::kFloat32;
  const auto program = (*runner)->Compile(
      *graph, {.device = GetParam(), .precision = kPrecision, .plan = DefaultPlanOf(GetParam(), kPrecision)});
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<PointCloud> clouds;
  for (const int size : {90, 0, 1, 250}) {
    const Points points = RandomScan(static_cast<uint32_t>(size), size);
    clouds.push_back(*PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size()));
  }
  const BatchReport batch = (*runner)->Run(*program, {&clouds[0], &clouds[1], &clouds[2], &clouds[3]}, true);
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  for (size_t i = 0; i < clouds.size(); ++i) {
    const BatchReport alone = (*runner)->Run(*program, {&clouds[i]}, true);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    ASSERT_EQ(alone.samples[0].scores().size(), batch.samples[i].scores().size());
    for (size_t j = 0; j < alone.samples[0].scores().size(); ++j) {
      ASSERT_NEAR(alone.samples[0].scores()[j], batch.samples[i].scores()[j], 1e-4) << i << ", " << j;
    }
  }
}

// Positions of kilometres keep their centimetres, also in float16 and bfloat16, where neighbours of 3000 are 2 and 16.
TEST_P(PositionsTest, PositionsAreExactInEveryPrecision) {
  support::TestModel model = PositionNetwork();
  model.Replace("of: OF_MEAN_POINT scale: [20, 20, 10] from_minimum: true",
                "of: OF_FIRST_POINT shift: [3000, -3000, 3000]");
  const absl::StatusOr<Graph> graph = LoadTestGraph(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Points points = RandomScan(3, 120);
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  // The coordinates of valid points, as the network must say them.
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < points.size(); ++i) {
    const float* const p = points.values.data() + 4 * i;
    if (std::isfinite(p[0]) && std::isfinite(p[1]) && std::isfinite(p[2])) {
      expected.push_back({p[0] + 3000, p[1] - 3000, p[2] + 3000});
    }
  }
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<ModelConfig::Precision> precisions = {ModelConfig::Precision::kFloat32};
  if (GetParam() == support::Device::kCuda) {
    precisions.push_back(ModelConfig::Precision::kFloat16);
    precisions.push_back(ModelConfig::Precision::kBfloat16);
  }
  for (const ModelConfig::Precision precision : precisions) {
    const auto program = (*runner)->Compile(
        *graph, {.device = GetParam(), .precision = precision, .plan = DefaultPlanOf(GetParam(), precision)});
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport output = (*runner)->Run(*program, {InferTask{.cloud = cloud, .tensor_set = AllTensors(2)}});
    ASSERT_TRUE(output.status.ok()) << output.status;
    const std::vector<OutputTensor>& tensors = output.samples[0].tensors;
    ASSERT_EQ(tensors.size(), 2u);
    ASSERT_EQ(tensors[0].info.name, "fine");
    ASSERT_EQ(tensors[0].dtype, DType::kFloat32);
    std::vector<float> rows(tensors[0].bytes.size() / sizeof(float));
    std::memcpy(rows.data(), tensors[0].bytes.data(), rows.size() * sizeof(float));
    ASSERT_EQ(rows.size() % 3, 0u);
    ASSERT_GT(rows.size(), 0u);
    for (size_t i = 0; i < rows.size(); i += 3) {
      EXPECT_THAT(expected, testing::Contains(testing::ElementsAre(rows[i], rows[i + 1], rows[i + 2])));
    }
  }
}

// ---- the types of buffers

CompileTarget Half() { return {.on_cuda = true, .dtype = DType::kFloat16}; }

// Returns the numbers of buffers of each type that have these channels.
std::map<DType, int> TypesOf(const Program& program, int channels) {
  std::map<DType, int> types;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.channels == channels) ++types[buffer.dtype];
  }
  return types;
}

// The linear layers that only a rotary reads write float32. The results of rotary are features.
TEST(PositionTypesTest, WhatRotaryReadsStaysFloat32) {
  GraphBuilder b(1);
  const int stem = b.Submanifold(0, 7, true);
  const int position = b.SitePosition({});
  const int coarse = b.PoolDown(position, PoolReduce::kAverage);
  const int down = b.Down(stem, 11);
  const int far = b.Rotary(b.Linear(down, 18, true), 1, 10, coarse);
  const int near = b.Rotary(b.Linear(stem, 12, true), 2, 10, position);
  const int up = b.Up(b.Linear(far, 5, true), down, 5);
  const Graph graph = b.Finish(b.Linear(b.Concat({b.Linear(near, 4, true), up}), 6, true));
  const Program program = Compile(graph, Plan(), Half());
  EXPECT_THAT(TypesOf(program, 3), testing::ElementsAre(testing::Pair(DType::kFloat32, 2)));  // positions
  for (const int channels : {12, 18}) {
    EXPECT_THAT(TypesOf(program, channels),
                testing::UnorderedElementsAre(testing::Pair(DType::kFloat32, 1), testing::Pair(DType::kFloat16, 1)));
  }
  EXPECT_THAT(TypesOf(program, 11), testing::ElementsAre(testing::Pair(DType::kFloat16, 1)));
  EXPECT_THAT(TypesOf(program, 7), testing::ElementsAre(testing::Pair(DType::kFloat16, 1)));
}

// Positions are converted once for all operators that read features.
TEST(PositionTypesTest, PositionsAreConvertedOnceForOthers) {
  GraphBuilder b(2);
  const int position = b.SitePosition({});
  const int stem = b.Linear(position, 6, true);
  const int rotated = b.Rotary(stem, 1, 10, position);
  const int sum = b.Sum(b.Linear(rotated, 3, true), position);
  const Graph graph = b.Finish(b.Linear(b.Concat({sum, position, b.Relu(position)}), 5, true));
  const Program half = Compile(graph, Plan(), Half());
  EXPECT_THAT(TypesOf(half, 3),
              testing::UnorderedElementsAre(testing::Pair(DType::kFloat32, 1), testing::Pair(DType::kFloat16, 1)));
  const Program full = Compile(graph, Plan(), {});
  EXPECT_EQ(half.steps.size(), full.steps.size() + 2);  // the conversion, and the copy of the concatenation
  for (const Buffer& buffer : half.buffers) EXPECT_GE(buffer.first_step, 0);
}

}  // namespace
}  // namespace voxserve::positions_test
