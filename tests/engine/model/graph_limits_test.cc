// Tests that a network at a limit (nodes, inputs, outputs, levels, rulebooks) is read, and that one beyond it is
// refused with the number and the limit before its nodes are checked.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/graph_validator.h"
#include "engine/model/levels.h"
#include "engine/model/text_file.h"
#include "tests/engine/model/broken_model.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve::graph_limits_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using voxserve::support::SmallModel;
using voxserve::support::TestModel;

constexpr int kNodesOfSmallModel = 12;

// Returns SmallModel with `count` more nodes of this text in a chain from the node "voxels" to the tensor "end".
TestModel WithChain(int count, const std::string& op) {
  TestModel model = SmallModel();
  std::string before = "voxels";
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&model.graph, "nodes { name: \"n", i, "\" inputs: \"", before, "\" ", op, " }\n");
    before = absl::StrCat("n", i);
  }
  absl::StrAppend(&model.graph, "outputs { kind: KIND_TENSOR name: \"end\" node: \"", before, "\" }\n");
  return model;
}

Problems ProblemsIn(const TestModel& model) { return ProblemsOf(Load(model).status()); }

TEST(GraphLimitsTest, Nodes) {
  const std::string relu = "activation { function: FUNCTION_RELU }";
  const absl::StatusOr<Graph> most = Load(WithChain(kMaxNodes - kNodesOfSmallModel, relu));
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->nodes.size(), static_cast<size_t>(kMaxNodes));
  EXPECT_THAT(ProblemsIn(WithChain(kMaxNodes - kNodesOfSmallModel + 1, relu)),
              ElementsAre("model.textproto: has 10001 nodes; at most 10000 are possible"));
}

TEST(GraphLimitsTest, Inputs) {
  TestModel model = SmallModel();
  model.graph += "nodes { name: \"all\" concat {}";
  for (int i = 0; i < kMaxInputs; ++i) model.graph += " inputs: \"voxels\"";
  model.graph += " }";
  EXPECT_THAT(ProblemsIn(model), ElementsAre(HasSubstr(" inputs of nodes; at most 100000 are possible")));
}

TEST(GraphLimitsTest, Outputs) {
  TestModel model = SmallModel();
  for (int i = 0; i < 67; ++i) model.graph += "outputs { kind: KIND_TENSOR name: \"a\" node: \"conv\" }\n";
  EXPECT_THAT(ProblemsIn(model), ElementsAre("model.textproto: has 69 outputs; at most 67 are possible"));
}

TEST(GraphLimitsTest, Levels) {
  TestModel model = SmallModel();
  const auto add_crop = [&model](int i) {
    absl::StrAppend(&model.graph, "nodes { name: \"c", i, "\" inputs: \"voxels\" crop { lower_bound: [", i,
                    ", 0, 0] } }\n");
  };
  for (int i = 1; i <= 600; ++i) add_crop(i);
  EXPECT_THAT(ProblemsIn(model).Lines().back(),
              testing::MatchesRegex("node \"c[0-9]+\": needs one more than the 500 coordinate levels or 5000 rulebooks "
                                    "that a network may have"));
}

TEST(GraphLimitsTest, ATableThatIsFullSaysSo) {
  LevelTable table(std::nullopt);
  const auto crop = [&table](int32_t lower) { return table.Filter(0, {.lower = {lower, 0, 0, 0}}); };
  for (size_t i = 1; i < kMaxLevels; ++i) EXPECT_EQ(crop(static_cast<int32_t>(i)), static_cast<int>(i));
  EXPECT_EQ(crop(1), 1);
  EXPECT_FALSE(table.is_full());
  crop(-1);
  EXPECT_TRUE(table.is_full());
  EXPECT_EQ(table.levels().size(), kMaxLevels);

  LevelTable books(std::nullopt);
  for (size_t i = 0; i < kMaxRulebooks; ++i) {
    books.Rulebook(0, 0, {.dimension = 3, .kernel_size = {static_cast<int32_t>(i) + 2, 1, 1, 1}});
  }
  EXPECT_FALSE(books.is_full());
  books.Rulebook(0, 0, {.dimension = 3, .kernel_size = {1, 2, 1, 1}});
  EXPECT_TRUE(books.is_full());
}

TEST(GraphLimitsTest, AUnionOfManyUnionsIsReadOnce) {
  LevelTable table(std::nullopt);
  std::vector<int> parts;
  for (int32_t i = 1; i <= 200; ++i) parts.push_back(table.Filter(0, {.lower = {i, 0, 0, 0}}));
  const int all = table.Union(parts);
  EXPECT_EQ(table.Union(std::vector<int>(100'000, all)), all);
  EXPECT_FALSE(table.is_full());
}

TEST(GraphLimitsTest, AValidatorEndsWhenItIsAsked) {
  Problems problems;
  model::v1::Model model;
  ASSERT_TRUE(ParseTextProto("nodes { name: \"a\" } nodes { name: \"b\" }", "model.textproto", &model, &problems));
  std::stop_source stop;
  stop.request_stop();
  ValidateGraph(model, {}, &problems, stop.get_token());
  EXPECT_TRUE(problems.empty()) << "no node was checked";
  ValidateGraph(model, {}, &problems);
  EXPECT_FALSE(problems.empty());
}

}  // namespace
}  // namespace voxserve::graph_limits_test
