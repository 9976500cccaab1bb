// Tests the error messages for outputs of KIND_TENSOR that cannot be answered.

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_tensors_test {
namespace {

using support::TestModel;

std::string Tensor(const std::string& node, const std::string& name) {
  return "outputs { kind: KIND_TENSOR node: \"" + node + "\" name: \"" + name + "\" }\n";
}

std::string BadName(const std::string& node, const std::string& name) {
  return "output \"" + node + "\": its name is \"" + name +
         "\"; that of a tensor has 1 to 64 letters, digits, \".\", \"_\" or \"-\", begins with a letter or digit, is "
         "not labels, scores or boxes and does not end in .coordinates or .unit";
}

class BrokenTensorsTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenTensorsTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Outputs, BrokenTensorsTest,
    ::testing::Values(
        BrokenModel{"NoName", Append(Tensor("head", "")), {BadName("head", "")}},
        BrokenModel{"NameOfLabels", Append(Tensor("head", "labels")), {BadName("head", "labels")}},
        BrokenModel{"NameOfCoordinates", Append(Tensor("head", "a.coordinates")), {BadName("head", "a.coordinates")}},
        BrokenModel{"NameOfAUnit", Append(Tensor("head", "a.unit")), {BadName("head", "a.unit")}},
        BrokenModel{"NameWithASlash", Append(Tensor("head", "a/b")), {BadName("head", "a/b")}},
        BrokenModel{"NameBeginsWithADot", Append(Tensor("head", ".a")), {BadName("head", ".a")}},
        BrokenModel{
            "NameTooLong", Append(Tensor("head", std::string(65, 'a'))), {BadName("head", std::string(65, 'a'))}},
        BrokenModel{"SecondOfAName",
                    Append(Tensor("head", "a") + Tensor("conv", "a")),
                    {"output \"conv\": is the second tensor with the name \"a\""}},
        BrokenModel{"MissingNode", Append(Tensor("nobody", "a")), {"output \"nobody\": this node does not exist"}},
        BrokenModel{"Labels",
                    Append(Tensor("best", "a")),
                    {"output \"best\": this node computes labels; KIND_LABELS answers with labels of points"}},
        BrokenModel{"NameOfAnotherKind",
                    Text("outputs { kind: KIND_LABELS", "outputs { name: \"a\" kind: KIND_LABELS"),
                    {"output \"labels\": has the name \"a\", which KIND_TENSOR alone may have"}},
        BrokenModel{"TooMany",
                    [](TestModel& model) {
                      for (int i = 0; i < 65; ++i) model.graph += Tensor("head", absl::StrCat("t", i));
                    },
                    {"output \"head\": is one tensor more than the 64 that a model may have"}}),
    CaseName);

TEST(TensorsTest, AModelNeedsNoLabels) {
  TestModel model = support::SmallModel();
  model.graph.resize(model.graph.find("outputs"));
  model.graph += Tensor("labels", "a");
  EXPECT_THAT(ProblemsOf(Load(model).status()),
              ::testing::ElementsAre(
                  "output \"labels\": this node computes labels; KIND_LABELS answers with labels of points"));
  for (const char* name : {"best", "labels"}) {
    const size_t begin = model.graph.find(std::string("nodes { name: \"") + name);
    ASSERT_NE(begin, std::string::npos);
    model.graph.erase(begin, model.graph.find('\n', begin) - begin);
  }
  model.graph.resize(model.graph.find("outputs"));
  model.graph += Tensor("scores", "logits-1.a") + Tensor("head", "voxels");
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->labels_output, -1);
  EXPECT_EQ(graph->num_classes, 0);
  ASSERT_EQ(graph->tensors.size(), 2u);
  EXPECT_EQ(graph->tensors[0].name, "logits-1.a");
  EXPECT_EQ(graph->nodes[graph->tensors[1].node].name, "head");
}

}  // namespace
}  // namespace voxserve::broken_tensors_test
