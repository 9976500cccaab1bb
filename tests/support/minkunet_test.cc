// Tests that the networks of minkunet.h have the layers, levels, pairs and parameters of the published ones.

#include "tests/support/minkunet.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace voxserve::support::minkunet_test {
namespace {

using ::testing::ElementsAre;

template <typename Op>
int CountNodes(const Graph& graph) {
  int count = 0;
  for (const GraphNode& node : graph.nodes) count += std::holds_alternative<Op>(node.op) ? 1 : 0;
  return count;
}

// The number of sites at each level, and of pairs of the 3 x 3 x 3 submanifold kernel there, in
// semantickitti-00/000000. tests/kernels/real_scans_test.cc checks them.
constexpr std::array<int64_t, 5> kSites = {91852, 60236, 31883, 14454, 5908};
constexpr std::array<int64_t, 5> kPairs = {345532, 365218, 238211, 122064, 54656};

double GigaMacs(const Graph& graph) {
  double macs = 0;
  for (const GraphNode& node : graph.nodes) {
    if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) {
      // Every fine site is in exactly one pair of a strided convolution whose kernel and stride are 2.
      const int finer = graph.nodes[static_cast<size_t>(node.inputs[0])].level;
      const int64_t pairs = conv->kind == SparseConvOp::Kind::kSubmanifold
                                ? kPairs.at(static_cast<size_t>(node.level))
                                : kSites.at(static_cast<size_t>(std::min(node.level, finer)));
      macs += static_cast<double>(pairs) * conv->in_channels * conv->out_channels;
    } else if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
      macs +=
          static_cast<double>(kSites.at(static_cast<size_t>(node.level))) * linear->in_channels * linear->out_channels;
    }
  }
  return macs * 1e-9;
}

TEST(MinkUNetTest, IsThePublishedNetwork) {
  const absl::StatusOr<Graph> graph = LoadNetwork(MinkUNet({}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(CountNodes<SparseConvOp>(*graph), 42);
  EXPECT_EQ(CountNodes<LinearOp>(*graph), 7 + 1);
  EXPECT_EQ(graph->levels.levels().size(), 5U);
  EXPECT_EQ(graph->levels.rulebooks().size(), 9U);
  EXPECT_EQ(graph->num_classes, 19);
  EXPECT_NEAR(static_cast<double>(graph->num_parameters), 21.7e6, 0.1e6);
  EXPECT_NEAR(GigaMacs(*graph), 115.5, 0.1);
}

TEST(MinkUNetTest, HasTheOptionsWidthClassesAndFeatures) {
  const absl::StatusOr<Graph> graph = LoadNetwork(
      MinkUNet({.width = 0.5, .num_classes = 12, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = 0.05f}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  // deploy/models/minkunet, which was trained elsewhere, has the same number of parameters.
  EXPECT_EQ(graph->num_parameters, 5441036);
  EXPECT_NEAR(GigaMacs(*graph), 28.9, 0.1);

  const absl::StatusOr<Graph> waymo = LoadNetwork(
      MinkUNet({.width = 0.25, .features = {"x", "y", "z", "intensity", "elongation"}, .voxel_size_m = 0.1f}));
  ASSERT_TRUE(waymo.ok()) << waymo.status();
  EXPECT_EQ(waymo->voxelize_op().features.size(), 5U);
  EXPECT_EQ(waymo->voxelize_op().voxel_size[2], 0.1f);
}

TEST(MinkUNetTest, TheSameSeedGivesTheSameBytes) {
  const NetworkOptions small = {.width = 0.25};
  const auto first = LoadNetwork(MinkUNet(small));
  const auto again = LoadNetwork(MinkUNet(small));
  const auto other = LoadNetwork(MinkUNet({.width = 0.25, .seed = 2}));
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->digest, again->digest);
  EXPECT_NE(first->digest, other->digest);
}

TEST(SparseResNet21DTest, IsThePublishedNetworkAndAWayBack) {
  const absl::StatusOr<Graph> graph = LoadNetwork(SparseResNet21D({.voxel_size_m = 0.1f}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(CountNodes<SparseConvOp>(*graph), 21 + 4);
  EXPECT_EQ(graph->levels.levels().size(), 5U);
  EXPECT_EQ(graph->levels.rulebooks().size(), 8U);
}

}  // namespace
}  // namespace voxserve::support::minkunet_test
