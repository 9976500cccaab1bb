// Tests the graphs that the loader makes of valid networks. broken_model_test.cc tests the messages for broken ones.

#include "engine/model/model_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/error_reason.h"
#include "engine/model/problems.h"
#include "tests/support/model_folder.h"
#include "tests/support/paths.h"

namespace voxserve::model_loader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using voxserve::support::FilledTensor;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;

absl::StatusOr<Graph> Load(const TestModel& model) {
  const TemporaryFolder folder;
  model.WriteTo(folder.path());
  return LoadGraph(folder.path() / "1");
}

Graph LoadValid(const TestModel& model) {
  absl::StatusOr<Graph> graph = Load(model);
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.ok() ? *std::move(graph) : Graph();
}

int IndexOf(const Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].name == name) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no node " << name;
  return 0;
}

template <typename Op>
const Op& OpOf(const Graph& graph, const std::string& name) {
  return std::get<Op>(graph.nodes[IndexOf(graph, name)].op);
}

TEST(LoadGraphTest, ResolvesTheSmallModel) {
  const Graph graph = LoadValid(SmallModel());
  EXPECT_EQ(graph.name, "small");
  EXPECT_EQ(graph.description, "for tests");
  EXPECT_EQ(graph.dimension, 3);
  ASSERT_EQ(graph.nodes.size(), 12U);
  EXPECT_EQ(graph.num_classes, 3);
  EXPECT_EQ(graph.labels_output, IndexOf(graph, "labels"));
  EXPECT_EQ(graph.scores_output, IndexOf(graph, "scores"));
  EXPECT_EQ(graph.num_parameters, 27 * 2 * 4 + 4 + 4 * 4 + 8 * 4 * 3 + 8 * 3 * 4 + 3 * 8 + 3);

  const VoxelizeOp& voxelize = graph.voxelize_op();
  EXPECT_EQ(voxelize.voxel_size[1], 0.5F);
  EXPECT_EQ(voxelize.rounding, kernels::VoxelRounding::kFloor);
  EXPECT_EQ(voxelize.origin, kernels::VoxelOrigin::kRange);
  EXPECT_EQ(voxelize.reduce, kernels::VoxelReduce::kMean);
  EXPECT_EQ(voxelize.max_points_per_voxel, 5);
  EXPECT_EQ(voxelize.grid_shape, (kernels::Axes{32, 32, 8, 1}));
  EXPECT_THAT(voxelize.axes, ElementsAre("x", "y", "z"));
  ASSERT_EQ(voxelize.features.size(), 2U);
  EXPECT_FALSE(voxelize.features[0].default_value.has_value());
  EXPECT_EQ(voxelize.features[0].scale, 1.0F);
  EXPECT_EQ(voxelize.features[1].default_value, 0.0F);
  EXPECT_EQ(voxelize.features[1].scale, 2.0F);

  EXPECT_EQ(OpOf<BatchNormOp>(graph, "norm").epsilon, 0.001F);
  EXPECT_EQ(OpOf<ArgmaxOp>(graph, "best").num_classes, 3);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "both")].channels, 8);
  EXPECT_TRUE(graph.nodes[IndexOf(graph, "labels")].is_labels);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "labels")].level, kPointLevel);
  EXPECT_FALSE(graph.nodes[IndexOf(graph, "scores")].is_labels);
}

// The network has points beside voxels, and outputs from points.
TEST(LoadGraphTest, RowsOfPoints) {
  TestModel model = SmallModel();
  model.Replace("node: \"labels\"", "node: \"point_best\"");
  model.Replace("nodes { name: \"labels\" inputs: [\"best\", \"voxels\"] voxel_to_point {} }", "");
  model.Replace("nodes { name: \"best\" inputs: [\"head\"] argmax {} }", "");
  model.graph += R"(
    nodes { name: "points" inputs: "voxels" point_features {} }
    nodes { name: "coarse" inputs: ["points", "voxels"] point_to_voxel { reduce: REDUCE_AVERAGE sites_of: "down" } }
    nodes { name: "fine" inputs: ["points", "voxels"] point_to_voxel { reduce: REDUCE_MAX } }
    nodes { name: "wide" inputs: ["coarse", "down"] concat {} }
    nodes { name: "at_points" inputs: ["wide", "voxels"] devoxelize {} }
    nodes { name: "at_sites" inputs: ["wide", "fine"] devoxelize {} }
    nodes { name: "carried" inputs: ["at_sites", "voxels"] voxel_to_point {} }
    nodes { name: "trunk" inputs: ["at_points", "carried", "scores"] concat {} }
    nodes { name: "point_head" inputs: "trunk" linear { out_channels: 3 } }
    nodes { name: "point_best" inputs: "point_head" argmax {} })";
  model.weights["point_head.weight"] = FilledTensor({3, 13});
  const Graph graph = LoadValid(model);
  const auto node = [&](const std::string& name) -> const GraphNode& { return graph.nodes[IndexOf(graph, name)]; };
  EXPECT_EQ(graph.labels_output, IndexOf(graph, "point_best"));
  EXPECT_EQ(graph.scores_output, IndexOf(graph, "scores"));
  EXPECT_EQ(graph.num_classes, 3);
  EXPECT_EQ(node("points").level, kPointLevel);
  EXPECT_EQ(node("points").channels, 2);
  EXPECT_EQ(node("coarse").level, node("down").level);
  EXPECT_EQ(OpOf<PointToVoxelOp>(graph, "coarse").reduce, kernels::PoolReduce::kAverage);
  EXPECT_EQ(OpOf<PointToVoxelOp>(graph, "coarse").sites_of, IndexOf(graph, "down"));
  EXPECT_EQ(node("fine").level, 0);
  EXPECT_EQ(OpOf<PointToVoxelOp>(graph, "fine").sites_of, -1);
  EXPECT_EQ(node("at_points").level, kPointLevel);
  EXPECT_EQ(node("at_points").channels, 5);
  EXPECT_EQ(node("at_sites").level, 0);
  EXPECT_EQ(node("trunk").channels, 13);
  EXPECT_EQ(node("point_best").level, kPointLevel);
}

TEST(LoadGraphTest, VoxelizeTakesASample) {
  TestModel model = SmallModel();
  model.Replace("name: \"voxels\"\n", "name: \"voxels\" inputs: \"sample\"\n");
  const std::string graph = model.graph;
  model.graph += "nodes { name: \"sample\" farthest_point_sample { num_points: 4096 start_index: 7 } }";
  const Graph at_index = LoadValid(model);
  EXPECT_EQ(at_index.nodes[0].name, "sample");
  ASSERT_TRUE(at_index.voxelize_op().sample.has_value());
  EXPECT_EQ(at_index.voxelize_op().sample->num_points, 4096U);
  EXPECT_EQ(at_index.voxelize_op().sample->start_index, 7U);
  EXPECT_FALSE(at_index.voxelize_op().sample->seed.has_value());
  EXPECT_TRUE(at_index.voxelize_op().sample->restricts_network);
  model.graph = graph + "nodes { name: \"sample\" farthest_point_sample { num_points: 1 seed: 0 } }";
  EXPECT_EQ(LoadValid(model).voxelize_op().sample->seed, 0U);
  EXPECT_FALSE(LoadValid(SmallModel()).voxelize_op().sample.has_value());
}

TEST(LoadGraphTest, SpatialShapesFollowFromTheStatedOne) {
  TestModel model = SmallModel();
  model.Replace("origin: ORIGIN_RANGE", "origin: ORIGIN_RANGE spatial_shape: [32, 33, 9]");
  const Graph graph = LoadValid(model);
  EXPECT_EQ(graph.voxelize_op().grid_shape, (kernels::Axes{32, 33, 9, 1}));
  EXPECT_EQ(graph.voxelize_op().range_max[2], 4.0F);
  ASSERT_EQ(graph.levels.levels().size(), 2U);
  EXPECT_EQ(graph.levels.levels()[0].spatial_shape, (kernels::Axes{32, 33, 9, 1}));
  EXPECT_EQ(graph.levels.levels()[1].spatial_shape, (kernels::Axes{16, 17, 5, 1}));
}

TEST(LoadGraphTest, ResolvesConvolutions) {
  const Graph graph = LoadValid(SmallModel());
  const auto& conv = OpOf<SparseConvOp>(graph, "conv");
  EXPECT_EQ(conv.kind, SparseConvOp::Kind::kSubmanifold);
  EXPECT_EQ(conv.in_channels, 2);
  EXPECT_EQ(conv.out_channels, 4);
  EXPECT_TRUE(conv.geometry().IsSymmetric());
  EXPECT_THAT(conv.weight->shape, ElementsAre(27, 2, 4));
  EXPECT_EQ(conv.weight->values[1], 0.1F + 0.9F * 1 / 216);
  ASSERT_NE(conv.bias, nullptr);

  const auto& down = OpOf<SparseConvOp>(graph, "down");
  EXPECT_EQ(down.geometry().padding, (kernels::Axes{0, 0, 0, 0}));
  EXPECT_EQ(down.bias, nullptr);
  const auto& up = OpOf<SparseConvOp>(graph, "up");
  EXPECT_EQ(up.kind, SparseConvOp::Kind::kInverse);
  EXPECT_EQ(up.paired_with, IndexOf(graph, "down"));
  EXPECT_EQ(up.geometry(), down.geometry());
  EXPECT_EQ(up.rulebook, down.rulebook);
  EXPECT_NE(up.rulebook, conv.rulebook);

  EXPECT_EQ(graph.nodes[IndexOf(graph, "conv")].level, 0);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "down")].level, 1);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "up")].level, 0);
  ASSERT_EQ(graph.levels.levels().size(), 2U);
  EXPECT_EQ(graph.levels.levels()[1].spatial_shape, (kernels::Axes{16, 16, 4, 1}));
}

// In spconv, a SparseMaxPool has an indice_key too, which an inverse convolution may name.
TEST(LoadGraphTest, InverseConvolutionMayNameAPool) {
  TestModel model = SmallModel();
  model.Replace("name: \"up\" inputs: [\"down\"]", "name: \"up\" inputs: [\"pool\"]");
  model.Replace("paired_with: \"down\"", "paired_with: \"pool\"");
  model.Replace("name: \"down\" inputs: [\"relu\"] sparse_conv", "name: \"pool\" inputs: [\"relu\"] pool");
  model.Replace("stride: [2, 2, 2] out_channels: 3", "stride: [2, 2, 2] reduce: REDUCE_MAX");
  model.weights.erase("down.weight");
  model.weights["up.weight"] = FilledTensor({8, 4, 4});
  const Graph graph = LoadValid(model);
  const auto& up = OpOf<SparseConvOp>(graph, "up");
  EXPECT_EQ(up.paired_with, IndexOf(graph, "pool"));
  EXPECT_EQ(up.sites, OpOf<PoolOp>(graph, "pool").sites);
  EXPECT_EQ(up.rulebook, OpOf<PoolOp>(graph, "pool").rulebook);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "up")].level, 0);
}

TEST(LoadGraphTest, ResolvesPoolsAndOperatorsOverSamples) {
  TestModel model = SmallModel();
  model.Replace("inputs: [\"both\"]", "inputs: [\"wide\"]");
  model.graph += R"(
nodes { name: "pooled" inputs: "both" pool { reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR
                                             kernel_size: [3, 3, 3] stride: [2, 2, 2] } }
nodes { name: "unpooled" inputs: "pooled" pool { reduce: REDUCE_AVERAGE kind: KIND_INVERSE paired_with: "pooled" } }
nodes { name: "again" inputs: "unpooled" pool { reduce: REDUCE_SUM kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] } }
nodes { name: "groups" inputs: "again" group_norm { num_groups: 2 affine: true } }
nodes { name: "instance" inputs: "groups" instance_norm { epsilon: 0.5 } }
nodes { name: "leaky" inputs: "instance" activation { function: FUNCTION_LEAKY_RELU } }
nodes { name: "global" inputs: "leaky" global_pool { reduce: REDUCE_SUM } }
nodes { name: "wide" inputs: ["leaky", "global"] broadcast { function: FUNCTION_CONCAT } }
)";
  model.weights["groups.weight"] = model.weights["groups.bias"] = FilledTensor({8});
  model.weights["head.weight"] = FilledTensor({3, 16});
  const Graph graph = LoadValid(model);

  const auto& pooled = OpOf<PoolOp>(graph, "pooled");
  EXPECT_EQ(pooled.reduce, kernels::PoolReduce::kMax);
  EXPECT_EQ(pooled.kind, SparseConvOp::Kind::kStrided);
  EXPECT_EQ(pooled.sites.geometry.padding, (kernels::Axes{1, 1, 1, 0}));
  EXPECT_EQ(graph.nodes[IndexOf(graph, "pooled")].channels, 8);
  // FLOOR's sites depend only on the stride. The pool thus shares the convolution's level, but not its rulebook.
  EXPECT_EQ(graph.nodes[IndexOf(graph, "pooled")].level, graph.nodes[IndexOf(graph, "down")].level);
  EXPECT_NE(pooled.rulebook, OpOf<SparseConvOp>(graph, "down").rulebook);
  const auto& unpooled = OpOf<PoolOp>(graph, "unpooled");
  EXPECT_EQ(unpooled.reduce, kernels::PoolReduce::kAverage);
  EXPECT_EQ(unpooled.paired_with, IndexOf(graph, "pooled"));
  EXPECT_EQ(unpooled.rulebook, pooled.rulebook);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "unpooled")].level, 0);
  EXPECT_EQ(OpOf<PoolOp>(graph, "again").rulebook, OpOf<SparseConvOp>(graph, "conv").rulebook);

  const auto& groups = OpOf<SampleNormOp>(graph, "groups");
  EXPECT_EQ(groups.num_groups, 2);
  EXPECT_EQ(groups.epsilon, 1e-5F);
  EXPECT_THAT(groups.weight->shape, ElementsAre(8));
  EXPECT_THAT(groups.bias->shape, ElementsAre(8));
  const auto& instance = OpOf<SampleNormOp>(graph, "instance");
  EXPECT_EQ(instance.num_groups, 8);
  EXPECT_EQ(instance.epsilon, 0.5F);
  EXPECT_EQ(instance.weight, nullptr);
  EXPECT_EQ(OpOf<ActivationOp>(graph, "leaky").activation,
            kernels::Activation(kernels::ActivationFunction::kLeakyRelu, 0.01F));

  EXPECT_EQ(OpOf<GlobalPoolOp>(graph, "global").reduce, kernels::PoolReduce::kSum);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "global")].level, kSampleLevel);
  EXPECT_EQ(OpOf<BroadcastOp>(graph, "wide").function, BroadcastOp::Function::kConcat);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "wide")].level, 0);
  EXPECT_EQ(graph.nodes[IndexOf(graph, "wide")].channels, 16);
}

TEST(LoadGraphTest, OrdersNodesByTheirInputsWhereverTheyStand) {
  TestModel model = SmallModel();
  const size_t outputs = model.graph.find("outputs");
  const size_t conv = model.graph.find("nodes { name: \"conv\"");
  const std::string head = model.graph.substr(0, conv);
  model.graph = model.graph.substr(conv, outputs - conv) + head + model.graph.substr(outputs);
  const Graph graph = LoadValid(model);
  EXPECT_EQ(graph.nodes[0].name, "voxels");
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const int input : graph.nodes[i].inputs) EXPECT_LT(input, static_cast<int>(i)) << graph.nodes[i].name;
  }
}

TEST(LoadGraphTest, ReadsHalfPrecisionExactly) {
  TestModel model = SmallModel();
  model.weights["head.bias"] = {"F16", {3}, std::string("\x00\x3c\x01\x00\x00\xc0", 6)};  // 1, 2^-24, -2
  model.weights["conv.bias"] = {
      "BF16", {4}, std::string("\x80\x3f\x20\xc1\x00\x00\x49\x40", 8)};  // 1, -10, 0, 3.140625
  const Graph graph = LoadValid(model);
  EXPECT_THAT(OpOf<LinearOp>(graph, "head").bias->values, ElementsAre(1.0F, std::ldexp(1.0F, -24), -2.0F));
  EXPECT_THAT(OpOf<SparseConvOp>(graph, "conv").bias->values, ElementsAre(1.0F, -10.0F, 0.0F, 3.140625F));
}

TEST(LoadGraphTest, DigestFollowsGraphAndWeights) {
  const std::string digest = LoadValid(SmallModel()).digest;
  EXPECT_EQ(digest.size(), 64U);
  EXPECT_EQ(LoadValid(SmallModel()).digest, digest);
  EXPECT_NE(LoadValid(SmallModel().Replace("for tests", "for checks")).digest, digest);
  TestModel other = SmallModel();
  other.weights["head.bias"].bytes[0] ^= 1;
  EXPECT_NE(LoadValid(other).digest, digest);
  const std::string network = LoadValid(SmallModel()).network_digest;
  EXPECT_EQ(network.size(), 64U);
  EXPECT_EQ(LoadValid(other).network_digest, network);
  // The digest does not depend on text that only people read.
  EXPECT_EQ(LoadValid(SmallModel().Replace("for tests", "for checks")).network_digest, network);
  TestModel commented = SmallModel();
  commented.graph += "\n# a comment\n";
  EXPECT_EQ(LoadValid(commented).network_digest, network);
  EXPECT_NE(LoadValid(SmallModel().Replace("voxel_size: [0.5, 0.5, 1]", "voxel_size: [0.5, 0.5, 1.01]")).network_digest,
            network);
}

TEST(LoadGraphTest, FourAxesDefaultToXyzt) {
  TestModel model = SmallModel();
  model.Replace("description", "dimension: 4 description")
      .Replace("voxel_size: [0.5, 0.5, 1]", "voxel_size: [0.5, 0.5, 1, 0.1]")
      .Replace("range_min: [-8, -8, -4]", "range_min: [-8, -8, -4, 0]")
      .Replace("range_max: [8, 8, 4]", "range_max: [8, 8, 4, 1]")
      .Replace("kernel_size: [3, 3, 3]", "kernel_size: [3, 1, 1, 2]")
      .Replace("kernel_size: [2, 2, 2] stride: [2, 2, 2]", "kernel_size: [2, 1, 1, 1] stride: [2, 1, 1, 1]");
  model.weights["conv.weight"] = FilledTensor({6, 2, 4});
  model.weights["down.weight"] = FilledTensor({2, 4, 3});
  model.weights["up.weight"] = FilledTensor({2, 3, 4});
  const Graph graph = LoadValid(model);
  EXPECT_THAT(graph.voxelize_op().axes, ElementsAre("x", "y", "z", "t"));
  EXPECT_EQ(graph.voxelize_op().grid_shape, (kernels::Axes{32, 32, 8, 10}));
  // On an axis of odd size the kernel is centred; on one of even size it begins at the site.
  EXPECT_EQ(OpOf<SparseConvOp>(graph, "conv").geometry().padding, (kernels::Axes{1, 0, 0, 0}));
}

TEST(LoadGraphTest, TheTrainedMinkUNetLoads) {
  const std::filesystem::path folder = std::filesystem::path(support::SourceDir()) / "deploy/models/minkunet/1";
  const absl::StatusOr<Graph> graph = LoadGraph(folder);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->num_parameters, 5441036);
  EXPECT_EQ(graph->num_classes, 12);
  EXPECT_EQ(graph->levels.levels().size(), 5U);
  // There is one submanifold rulebook for each level, and one for each strided convolution. The inverse convolutions
  // use the rulebooks of the strided convolutions.
  EXPECT_EQ(graph->levels.rulebooks().size(), 9U);
}

TEST(LoadGraphTest, MissingFilesAreProblems) {
  const TemporaryFolder folder;
  const absl::StatusOr<Graph> graph = LoadGraph(folder.path());
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(graph.status()), error_reason::kBadModel);
  EXPECT_THAT(ProblemsOf(graph.status()),
              ElementsAre("model.textproto: cannot be read (No such file or directory)",
                          "weights.safetensors: cannot be read (No such file or directory)"));
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("has 2 problems: model.textproto: cannot be read"));
}

TEST(LoadGraphTest, TheGraphIsCheckedWithoutWeightsToo) {
  const TemporaryFolder folder;
  SmallModel().Replace("function: FUNCTION_RELU", "").WriteTo(folder.path());
  std::filesystem::remove(folder.path() / "1/weights.safetensors");
  EXPECT_THAT(ProblemsOf(LoadGraph(folder.path() / "1").status()),
              ElementsAre("weights.safetensors: cannot be read (No such file or directory)",
                          StartsWith("node \"relu\": function must be one of FUNCTION_RELU, ")));
}

// Removes or moves words of a graph at random. Loading must report problems, or return a graph that passes the checks
// below.
TEST(LoadGraphTest, NoMutilatedGraphGetsThroughHalfChecked) {
  std::mt19937 random(11);
  const TestModel valid = SmallModel();
  std::vector<std::string> words = absl::StrSplit(valid.graph, ' ');
  int num_valid = 0;
  for (int repetition = 0; repetition < 1000; ++repetition) {
    std::vector<std::string> mutilated = words;
    for (int change = 0; change < 2; ++change) {
      std::string& word = mutilated[random() % mutilated.size()];
      word = random() % 2 == 0 ? "" : words[random() % words.size()];
    }
    TestModel model = valid;
    model.graph = absl::StrJoin(mutilated, " ");
    const absl::StatusOr<Graph> graph = Load(model);
    if (!graph.ok()) {
      EXPECT_FALSE(ProblemsOf(graph.status()).empty());
      continue;
    }
    ++num_valid;
    for (size_t i = 0; i < graph->nodes.size(); ++i) {
      const GraphNode& node = graph->nodes[i];
      EXPECT_GT(node.channels, 0) << model.graph;
      for (const int input : node.inputs) {
        EXPECT_TRUE(input >= 0 && input < static_cast<int>(i)) << model.graph;
      }
      if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) {
        EXPECT_EQ(conv->weight->shape[0], conv->geometry().NumOffsets()) << model.graph;
        const RulebookSpec& rulebook = graph->levels.rulebooks()[conv->rulebook];
        EXPECT_EQ(node.level, conv->is_swapped() ? rulebook.in_level : rulebook.out_level) << model.graph;
      }
    }
  }
  EXPECT_GT(num_valid, 5);  // some changes do no harm
  EXPECT_LT(num_valid, 700);
}

}  // namespace
}  // namespace voxserve::model_loader_test
