// Tests which values and layers FindInt8Candidates finds, and what CheckInt8 refuses.

#include "engine/compiler/int8_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/model/problems.h"
#include "tests/engine/executor/graph_builder.h"

namespace voxserve::int8_values_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Returns (node, is_non_negative) of each value.
std::vector<std::pair<int, bool>> ValuesOf(const Graph& graph) {
  std::vector<std::pair<int, bool>> values;
  for (const Int8Value& value : FindInt8Candidates(graph).values)
    values.emplace_back(value.node, value.is_non_negative);
  return values;
}

Problems ProblemsWith(const Graph& graph, const std::vector<std::string>& float_nodes = {}) {
  const absl::Status status = CheckInt8(graph, float_nodes);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadModel);
  }
  return ProblemsOf(status);
}

TEST(Int8ValuesTest, AValueIsThatOfALayersLastNode) {
  GraphBuilder b(1);
  const int first = b.Submanifold(0, 8, false);
  const int relu = b.Relu(b.Norm(first));
  const int second = b.Submanifold(relu, 8, false);
  const int sum = b.Sum(b.Norm(second), relu);
  const int head = b.Linear(sum, 3, true);
  const Graph graph = b.Finish(head);
  const Int8Candidates found = FindInt8Candidates(graph);
  ASSERT_EQ(found.layers.size(), 3U);
  EXPECT_EQ(found.layers[0].first_node, first);
  EXPECT_EQ(found.layers[0].result_node, relu);
  EXPECT_THAT(found.layers[0].inputs, ElementsAre(0));
  EXPECT_EQ(found.layers[1].first_node, second);
  EXPECT_EQ(found.layers[1].result_node, sum);
  EXPECT_THAT(found.layers[1].inputs, ElementsAre(relu));
  EXPECT_EQ(found.layers[2].first_node, head);
  EXPECT_THAT(found.layers[2].inputs, ElementsAre(sum));
  // The voxels' features and a sum may be negative; nothing multiplies the head's result.
  EXPECT_THAT(ValuesOf(graph), ElementsAre(Pair(0, false), Pair(relu, true), Pair(sum, false)));
}

TEST(Int8ValuesTest, PartsOfAConcatenationKeepScalesOfTheirOwn) {
  GraphBuilder b(2);
  const int left = b.Relu(b.Submanifold(0, 8, false));
  const int right = b.Norm(b.Submanifold(0, 4, false));
  const int inner = b.Concat({left, right});
  const int conv = b.Submanifold(b.Concat({inner, left}), 8, false);
  const Graph graph = b.Finish(b.Linear(conv, 3, true));
  EXPECT_THAT(FindInt8Candidates(graph).layers[2].inputs, ElementsAre(left, right, left));
  EXPECT_THAT(ValuesOf(graph), ElementsAre(Pair(0, false), Pair(left, true), Pair(right, false), Pair(conv, false)));
}

TEST(Int8ValuesTest, PoolsAndConcatenationsOfOtherSitesAreValuesOfTheirOwn) {
  GraphBuilder b(3);
  const int relu = b.Relu(b.Submanifold(0, 8, false));
  const int pool = b.PoolDown(relu, kernels::PoolReduce::kMax);
  const int back = b.Unpool(b.Submanifold(pool, 8, true), pool, kernels::PoolReduce::kMax);
  const int cut = b.Crop(relu, {1, 0, 0, 0}, {5, 5, 4, 1});
  const int both = b.UnionConcat({cut, relu});
  const int conv = b.Submanifold(both, 6, true);
  const Graph graph = b.Finish(b.Linear(b.Concat({b.Linear(back, 4, true), b.Linear(relu, 4, true)}), 3, true));
  // `both` was removed with what reads it: no output depends on it.
  EXPECT_GT(conv, both);
  bool has_pool = false;
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    if (!std::holds_alternative<PoolOp>(graph.nodes[static_cast<size_t>(value.node)].op)) continue;
    has_pool = true;
    const bool is_of_relu = graph.nodes[static_cast<size_t>(value.node)].level == kCoarse;
    EXPECT_EQ(value.is_non_negative, is_of_relu) << value.node;  // the other pools a convolution without ReLU
  }
  EXPECT_TRUE(has_pool);
}

TEST(Int8ValuesTest, EveryActivationThatIsNeverNegativeIsKnown) {
  for (const auto& [function, name] : kernels::kActivationNames) {
    GraphBuilder b(4);
    const kernels::Activation activation(function, /*p=*/0.5f, /*most=*/6.0f);
    const int value = b.Activation(b.Submanifold(0, 4, false), activation);
    const Graph graph = b.Finish(b.Linear(value, 3, true));
    float least = 0;
    for (float x = -20; x <= 20; x += 0.125f) least = std::fmin(least, kernels::Activate(activation, x));
    EXPECT_THAT(ValuesOf(graph),
                ::testing::Contains(Pair(value, least >= 0 && function != kernels::ActivationFunction::kPower)))
        << name;
  }
}

TEST(Int8ValuesTest, ALayerWhoseSumsCouldOverflowStaysInFloat) {
  GraphBuilder b(5);
  const int wide = b.Relu(b.Submanifold(0, 2500, false));  // 27 * 2,500 products of 255 * 127 exceed an int32
  const int conv = b.Submanifold(wide, 2, false);
  const Graph graph = b.Finish(b.Linear(conv, 3, true));
  EXPECT_THAT(ValuesOf(graph), ElementsAre(Pair(0, false), Pair(conv, false)));
}

Graph SmallGraph(float scale_of_relu, float scale_of_conv = 0) {
  GraphBuilder b(6);
  const int conv = b.Submanifold(0, 4, false);
  const int relu = b.Relu(conv);
  Graph graph = b.Finish(b.Linear(relu, 3, true));
  graph.nodes[0].scale = scale_of_relu;
  graph.nodes[static_cast<size_t>(relu)].scale = scale_of_relu;
  graph.nodes[static_cast<size_t>(conv)].scale = scale_of_conv;
  return graph;
}

TEST(CheckInt8Test, AcceptsScalesAndTheNamesOfLayers) {
  const Graph graph = SmallGraph(0.5f);
  EXPECT_THAT(ProblemsWith(graph), IsEmpty());
  EXPECT_THAT(ProblemsWith(graph, {graph.nodes[1].name}), IsEmpty());
}

TEST(CheckInt8Test, SaysWhichCommandMakesMissingScales) {
  EXPECT_THAT(ProblemsWith(SmallGraph(0)), ElementsAre(HasSubstr("voxserve-calibrate")));
}

TEST(CheckInt8Test, NamesTheScalesThatALayerLacks) {
  GraphBuilder b(6);
  const int left = b.Relu(b.Submanifold(0, 4, false)), right = b.Relu(b.Submanifold(0, 2, false));
  const int head = b.Linear(b.Concat({left, right}), 3, true);
  Graph graph = b.Finish(head);
  const auto name = [&](int node) { return graph.nodes[static_cast<size_t>(node)].name; };
  graph.nodes[0].scale = 0.5f;
  EXPECT_THAT(ProblemsWith(graph),
              ElementsAre("node \"" + name(head) + "\": weights.safetensors lacks \"" + name(left) + ".scale\", \"" +
                          name(right) + ".scale\", which it needs to multiply in 8 bits; add it, or name the node in " +
                          "int8 { float_nodes } of config.textproto"));
  graph.nodes[static_cast<size_t>(left)].scale = 0.5f;
  EXPECT_THAT(ProblemsWith(graph), ElementsAre(HasSubstr("lacks \"" + name(right) + ".scale\", which")));
  EXPECT_THAT(ProblemsWith(graph, {name(head)}), IsEmpty());
  graph.nodes[0].scale = 0;
  EXPECT_THAT(ProblemsWith(graph, {name(head)}).size(), 2U) << "both convolutions";
}

TEST(CheckInt8Test, NamesTheFileThatSetsThePrecision) {
  const absl::Status no_scales = CheckInt8(SmallGraph(0), {"none"}, "2/config.textproto");
  EXPECT_THAT(ProblemsOf(no_scales), ElementsAre(HasSubstr("2/config.textproto: PRECISION_INT8: "),
                                                 HasSubstr("2/config.textproto: int8: float_nodes has \"none\"")));
}

TEST(CheckInt8Test, NamesAScaleThatNoLayerReads) {
  const Graph graph = SmallGraph(0.5f, 0.25f);
  EXPECT_THAT(ProblemsWith(graph),
              ElementsAre("tensor \"" + graph.nodes[1].name + ".scale\": no layer reads the value of node \"" +
                          graph.nodes[1].name + "\" in 8 bits; the scales may be of another model"));
}

TEST(CheckInt8Test, NamesFloatNodesThatAreNoLayers) {
  const Graph graph = SmallGraph(0.5f);
  EXPECT_THAT(ProblemsWith(graph, {"nobody", graph.nodes[2].name}),
              ElementsAre("config.textproto: int8: float_nodes has \"nobody\", which is no convolution or linear "
                          "layer of the network that may multiply in 8 bits",
                          HasSubstr("float_nodes has \"" + graph.nodes[2].name + "\"")));
}

}  // namespace
}  // namespace voxserve::int8_values_test
