// Tests dense grids in networks: sites are copied to cells and back, layers are fused into image convolutions, and
// image convolutions that are alike are merged into one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/ops/image/conv2d.h"
#include "tests/engine/executor/program_comparison.h"

namespace voxserve::grid_operators_test {
namespace {

using kernels::ActivationFunction;
using kernels::Conv2dGeometry;
using kernels::CoordinateRule;

constexpr Conv2dGeometry kSame3x3 = {.kernel_size = {3, 3}, .padding = {1, 1}};

class GridOperatorsTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, GridOperatorsTest, support::AllDevices(), support::DeviceName);

GraphBuilder OfImages(uint32_t seed) { return GraphBuilder(seed, CoordinateRule::kFloor, /*dimension=*/2); }

// Returns an image as large as the shape.
int Image(GraphBuilder& b, int channels) { return b.ToDense(b.Linear(0, channels, true)); }

// Ends the graph with a node that reads the cells of the image, which is as large as the shape, at the sites.
Graph FinishImage(GraphBuilder& b, int image) { return b.Finish(b.Linear(b.FromDense(image, 0), 3, true)); }

std::vector<const Conv2dStep*> Conv2dSteps(const Program& program) {
  std::vector<const Conv2dStep*> steps;
  for (const auto& step : program.steps) {
    if (const auto* conv = dynamic_cast<const Conv2dStep*>(step.get())) steps.push_back(conv);
  }
  return steps;
}

// The grids have 3 axes. Between ToDense and FromDense stand operators that work row by row.
TEST_P(GridOperatorsTest, CellsAreRowsForWhatReadsRows) {
  for (const int channels : {3, 8}) {
    GraphBuilder b(1);
    const int stem = b.Submanifold(0, channels, true);
    const int cells = b.ToDense(stem);
    const int sum = b.Sum(b.Relu(b.Norm(b.Linear(cells, channels, true))), cells);
    const int both = b.Concat({b.Norm(sum), cells});
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.FromDense(b.Linear(both, 5, false), stem), 3, true)), 1);
  }
}

// Copies the cells of a coarse level from and into columns of a concatenation, and copies cells for the head alone.
TEST_P(GridOperatorsTest, OfACoarseLevel) {
  for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kPadded}) {
    GraphBuilder b(2, rule);
    const int down = b.Down(b.Submanifold(0, 8, true), 5);
    const int other = b.Submanifold(down, 3, true);
    const int both = b.Concat({other, down});
    const int back = b.FromDense(b.ToDense(down), other);
    const int up = b.Up(b.Concat({back, both}), down, 6);
    ExpectEqual(GetParam(), b.Finish(b.FromDense(b.ToDense(up), 0)), 2);
  }
}

// A convolution shrinks the image to one cell, whose row is added to every site's row.
TEST_P(GridOperatorsTest, SeenFromAbove) {
  for (const int channels : {3, 8}) {
    GraphBuilder b(3);
    const int stem = b.Submanifold(0, channels, true);
    const int bev = b.ToBev(stem);
    EXPECT_EQ(b.Channels(bev), channels * 4);
    const int image = b.Relu(b.Norm(b.Conv2d(bev, kSame3x3, 6, false)));
    ASSERT_EQ(b.Grid(image), (GridShape{.dimension = 2, .size = {5, 7, 1, 1}}));
    const int one = b.Conv2d(image, {.kernel_size = {5, 7}}, channels, true);
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.Broadcast(stem, one, BroadcastOp::Function::kAdd), 3, true)), 3);
  }
}

TEST_P(GridOperatorsTest, ConvolutionsThatKeepTheSize) {
  const std::vector<Conv2dGeometry> geometries = {
      {},
      kSame3x3,
      {.kernel_size = {1, 5}, .padding = {0, 2}},
      {.kernel_size = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}},
      {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 2},
      {.kernel_size = {7, 3}, .padding = {3, 1}, .groups = 6},
      {.kernel_size = {3, 3}, .padding = {1, 1}, .is_transposed = true},
  };
  for (const Conv2dGeometry& geometry : geometries) {
    for (const bool bias : {false, true}) {
      GraphBuilder b = OfImages(4);
      ExpectEqual(GetParam(), FinishImage(b, b.Conv2d(Image(b, 6), geometry, 12, bias)), 4);
    }
  }
}

// Tests a backbone with a stride of 2, and with a transposed convolution that restores the size and writes into a
// concatenation in place.
TEST_P(GridOperatorsTest, BackboneThatComesBack) {
  GraphBuilder b = OfImages(5);
  const int stem = Image(b, 8);  // 7 x 5
  const int down =
      b.Relu(b.Norm(b.Conv2d(stem, {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, 10, false)));
  ASSERT_EQ(b.Grid(down).size, (kernels::Axes{4, 3, 1, 1}));
  const Conv2dGeometry up{.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .is_transposed = true};
  const int fine = b.Relu(b.Norm(b.Conv2d(b.Conv2d(down, kSame3x3, 10, true), up, 9, false)));
  ASSERT_EQ(b.Grid(fine), b.Grid(stem));
  const int lateral = b.Relu(b.Norm(b.Conv2d(stem, kSame3x3, 4, false)));
  const Graph graph = FinishImage(b, b.Conv2d(b.Concat({lateral, fine}), kSame3x3, 6, true));
  const Program program = Compile(graph, Plan(), {.merges_products = true});
  EXPECT_EQ(Conv2dSteps(program).size(), 5u);
  // The steps are: voxel features, linear, to dense, the five convolutions, from dense, linear, argmax and the two
  // outputs. Norms, ReLUs and copies take no step.
  EXPECT_EQ(program.steps.size(), 13u);
  ExpectEqual(GetParam(), graph, 5);
}

TEST_P(GridOperatorsTest, OutputPaddingAndUnevenStrides) {
  GraphBuilder b = OfImages(6);
  const int down = b.Conv2d(Image(b, 5), {.kernel_size = {2, 3}, .stride = {3, 2}, .padding = {0, 1}}, 7, true);
  ASSERT_EQ(b.Grid(down).size, (kernels::Axes{2, 3, 1, 1}));
  const int up = b.Conv2d(
      down,
      {.kernel_size = {3, 1}, .stride = {3, 2}, .padding = {0, 0}, .output_padding = {1, 0}, .is_transposed = true}, 4,
      true);
  ASSERT_EQ(b.Grid(up).size, (kernels::Axes{7, 5, 1, 1}));
  ExpectEqual(GetParam(), FinishImage(b, up), 6);
}

TEST_P(GridOperatorsTest, ResidualsAndActivationsCostNoStep) {
  GraphBuilder b = OfImages(7);
  const int stem = b.Relu(b.Conv2d(Image(b, 6), kSame3x3, 8, true));
  const int inner = b.Activation(b.Norm(b.Conv2d(stem, kSame3x3, 8, false)), ActivationFunction::kSilu);
  const int block = b.Relu(b.Sum(b.Norm(b.Conv2d(inner, kSame3x3, 8, false)), stem));
  const Graph graph = FinishImage(b, block);
  EXPECT_EQ(Compile(graph, Plan(), {.merges_products = true}).steps.size(), 11u);
  ExpectEqual(GetParam(), graph, 7);
}

// Adds a detection head. Each task has branches: a convolution with norm and ReLU, followed by a last convolution.
int DetectionHead(GraphBuilder& b, int shared, int num_tasks) {
  std::vector<int> ends;
  for (int task = 0; task < num_tasks; ++task) {
    for (const int channels : {2, 1, 3}) {
      const int branch = b.Relu(b.Norm(b.Conv2d(shared, kSame3x3, 8, task == 1)));
      ends.push_back(b.Conv2d(branch, kSame3x3, channels, true));
    }
  }
  // The results are added, since layers that write into a concatenation would not be merged.
  int sum = b.Linear(ends[0], 6, true);
  for (size_t i = 1; i < ends.size(); ++i) sum = b.Sum(b.Linear(ends[i], 6, true), sum);
  return sum;
}

TEST_P(GridOperatorsTest, BranchesAreOneConvolutionAndTheirEndsOneOfGroups) {
  GraphBuilder b = OfImages(8);
  const int shared = b.Relu(b.Conv2d(Image(b, 6), kSame3x3, 8, true));
  const Graph graph = FinishImage(b, DetectionHead(b, shared, 3));
  const Program program = Compile(graph, Plan(), {.merges_products = true});
  const std::vector<const Conv2dStep*> convs = Conv2dSteps(program);
  ASSERT_EQ(convs.size(), 3u);
  EXPECT_EQ(convs[1]->options().out.channels, 9 * 8);
  EXPECT_EQ(convs[1]->options().geometry, kSame3x3);
  EXPECT_EQ(convs[2]->options().geometry.groups, 9);
  EXPECT_EQ(convs[2]->options().in.channels, 9 * 8);
  EXPECT_EQ(convs[2]->options().out.channels, 9 * 3);
  EXPECT_EQ(Conv2dSteps(Compile(graph, Plan(), {})).size(), 1u + 2 * 9);
  ExpectEqual(GetParam(), graph, 8);
}

// Some convolutions differ from the others in geometry, activation or reader. Others have columns that are read twice,
// or only in part.
TEST_P(GridOperatorsTest, OnlyWhatIsAlikeIsMerged) {
  GraphBuilder b = OfImages(9);
  const int image = Image(b, 6);
  const int relu = b.Relu(b.Conv2d(image, kSame3x3, 8, true));
  const int other_relu = b.Relu(b.Conv2d(image, kSame3x3, 8, false));
  const int plain = b.Conv2d(image, kSame3x3, 8, true);
  const int wide = b.Relu(b.Conv2d(image, {.kernel_size = {5, 5}, .padding = {2, 2}}, 8, true));
  const int grouped = b.Relu(b.Conv2d(image, {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 2}, 8, true));
  const int added = b.Relu(b.Sum(b.Conv2d(image, kSame3x3, 8, true), plain));
  const int in_place = b.Relu(b.Conv2d(image, kSame3x3, 8, true));
  const int third_relu = b.Relu(b.Conv2d(image, kSame3x3, 8, true));
  const int end = b.Conv2d(relu, kSame3x3, 5, true);
  const int other_end = b.Conv2d(other_relu, kSame3x3, 5, true);
  const int added_end = b.Sum(b.Conv2d(third_relu, kSame3x3, 5, true), end);
  const int relu_end = b.Relu(b.Conv2d(relu, kSame3x3, 5, true));
  const int ends = b.Sum(added_end, b.Sum(other_end, relu_end));
  const int rest = b.Sum(b.Sum(wide, grouped), b.Sum(added, b.Sum(third_relu, other_relu)));
  const int all = b.Concat({in_place, b.Linear(rest, 5, true), ends});
  const Graph graph = FinishImage(b, all);
  for (const bool merges : {false, true}) {
    SCOPED_TRACE(merges);
    const Program program = Compile(graph, Plan(), {.merges_products = merges});
    // If convolutions are merged, the three with ReLU become one, and so do two of the convolutions that read them. The
    // other convolutions that read them have a residual or a ReLU.
    EXPECT_EQ(Conv2dSteps(program).size(), merges ? 9u : 12u);
  }
  ExpectEqual(GetParam(), graph, 9);
}

// Each branch has three convolutions, with kernels of 1 x 1, 3 x 3 and 1 x 1. Only the head reads the branches.
TEST_P(GridOperatorsTest, BranchesOfThreeConvolutions) {
  GraphBuilder b = OfImages(10);
  const int image = Image(b, 6);
  std::vector<int> ends;
  for (int branch = 0; branch < 4; ++branch) {
    const int first = b.Relu(b.Conv2d(image, {}, 8, true));
    const int second = b.Relu(b.Conv2d(first, kSame3x3, 8, true));
    ends.push_back(b.Activation(b.Conv2d(second, {}, 3, false), ActivationFunction::kTanh));
  }
  const int sum = b.Sum(b.Sum(ends[3], ends[1]), b.Sum(ends[0], ends[2]));
  const Graph graph = FinishImage(b, sum);
  const Program program = Compile(graph, Plan(), {.merges_products = true});
  const std::vector<const Conv2dStep*> convs = Conv2dSteps(program);
  ASSERT_EQ(convs.size(), 2u) << "the first is a linear layer";
  EXPECT_EQ(convs[0]->options().geometry.groups, 4);
  EXPECT_EQ(convs[1]->options().geometry.groups, 4);
  EXPECT_EQ(convs[1]->options().out.channels, 12);
  ExpectEqual(GetParam(), graph, 10);
}

PointCloud Cloud(const Points& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
}

Graph Detector() {
  GraphBuilder b(11);
  const int stem = b.Submanifold(0, 8, true);
  const int shared = b.Relu(b.Conv2d(b.ToBev(stem), kSame3x3, 8, true));
  const int one = b.Conv2d(DetectionHead(b, shared, 2), {.kernel_size = {5, 7}}, 8, true);
  const int cells = b.FromDense(b.Relu(b.ToDense(stem)), 0);
  return b.Finish(b.Linear(b.Broadcast(cells, one, BroadcastOp::Function::kAdd), 3, true));
}

TEST_P(GridOperatorsTest, MergedAndUnmergedAgree) {
  const PointCloud cloud = Cloud(RandomPoints(3));
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::vector<float> scores[2];
  for (const bool merges : {false, true}) {
    const auto program = (*runner)->Compile(Detector(), {.device = GetParam(), .merges_products = merges});
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport output = (*runner)->Run(*program, {&cloud}, true);
    ASSERT_TRUE(output.status.ok()) << output.status;
    const absl::Span<const float> made = output.samples[0].scores();
    scores[merges ? 1 : 0].assign(made.begin(), made.end());
  }
  ASSERT_EQ(scores[0].size(), scores[1].size());
  for (size_t i = 0; i < scores[0].size(); ++i) {
    ASSERT_NEAR(scores[0][i], scores[1][i], 1e-4f * std::max(1.0f, std::abs(scores[0][i]))) << i;
  }
}

TEST_P(GridOperatorsTest, DetectorEqualsTheInterpreter) {
  ExpectEqual(GetParam(), Detector(), 12);
  ExpectEqual(GetParam(), Detector(), 13);
}

TEST(GridOperatorsCudaTest, MapsThatAreMadeOnTheCpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  ExpectEqualWithMapsOfTheCpu(Detector());
}

}  // namespace
}  // namespace voxserve::grid_operators_test
