// Tests the error messages for networks with broken operators of rows, activations and shared weights.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_rows_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenRowsTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenRowsTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds the nodes `others`, and after them a node "next" with these inputs.
std::function<void(TestModel&)> Next(const std::string& inputs, const std::string& op, const std::string& others = "") {
  return Append(absl::StrCat(others, "nodes { name: \"next\" inputs: [", inputs, "] ", op, " }"));
}

std::function<void(TestModel&)> NextWith(const std::string& op, const std::string& tensor, std::vector<int64_t> shape) {
  return [=](TestModel& model) {
    Next("\"relu\"", op)(model);
    model.weights[tensor] = FilledTensor(shape);
  };
}

BrokenModel Activation(const std::string& name, const std::string& text, const std::string& problem) {
  return {name, Text("function: FUNCTION_RELU", text), {absl::StrCat("node \"relu\": ", problem)}};
}

INSTANTIATE_TEST_SUITE_P(
    Products, BrokenRowsTest,
    ::testing::Values(
        BrokenModel{"Union",
                    Next("\"relu\", \"conv\"", "multiply { sites: SITES_UNION }"),
                    {"node \"next\": sites is SITES_UNION; a product is 0 where one of its inputs has no site, so both "
                     "need the same"}},
        BrokenModel{"Channels",
                    Next("\"relu\", \"voxels\"", "multiply {}"),
                    {"node \"next\": multiplies 4 channels of \"relu\" and 2 of \"voxels\""}},
        BrokenModel{"Sites",
                    Next("\"relu\", \"down\"", "multiply {}"),
                    {"node \"next\": its inputs \"relu\" and \"down\" are on different sites"}},
        BrokenModel{"OneInput", Next("\"relu\"", "multiply {}"), {"node \"next\": has 1 inputs; it needs 2"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    FunctionsOfTwo, BrokenRowsTest,
    ::testing::Values(
        BrokenModel{"Function",
                    Next("\"relu\", \"conv\"", "elementwise {}"),
                    {"node \"next\": function must be FUNCTION_ADD, FUNCTION_SUBTRACT, FUNCTION_MULTIPLY, "
                     "FUNCTION_DIVIDE, FUNCTION_MAXIMUM or FUNCTION_MINIMUM"}},
        BrokenModel{"TwoAndFourChannels",
                    Next("\"relu\", \"voxels\"", "elementwise { function: FUNCTION_DIVIDE }"),
                    {"node \"next\": combines 4 channels of \"relu\" and 2 of \"voxels\"; both need as many, or one "
                     "of them 1"}},
        BrokenModel{"OtherSites",
                    Next("\"relu\", \"down\"", "elementwise { function: FUNCTION_SUBTRACT }"),
                    {"node \"next\": its inputs \"relu\" and \"down\" are on different sites"}},
        BrokenModel{"EpsilonOfASum",
                    Next("\"relu\", \"conv\"", "elementwise { function: FUNCTION_ADD epsilon: 1 }"),
                    {"node \"next\": epsilon belongs to FUNCTION_DIVIDE alone"}},
        BrokenModel{"EpsilonIsNan",
                    Next("\"relu\", \"conv\"", "elementwise { function: FUNCTION_DIVIDE epsilon: nan }"),
                    {"node \"next\": epsilon is nan; it must be finite"}},
        BrokenModel{"OfLabels",
                    Next("\"best\", \"relu\"", "elementwise { function: FUNCTION_ADD }"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Reductions, BrokenRowsTest,
    ::testing::Values(BrokenModel{"NoFunction",
                                  Next("\"relu\"", "row_reduce {}"),
                                  {"node \"next\": function must be FUNCTION_SUM, FUNCTION_MEAN, FUNCTION_MAX, "
                                   "FUNCTION_MIN or FUNCTION_LENGTH"}},
                      BrokenModel{"LabelsReduced",
                                  Next("\"best\"", "row_reduce { function: FUNCTION_SUM }"),
                                  {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads "
                                   "those"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Coordinates, BrokenRowsTest,
    ::testing::Values(BrokenModel{"ScaleOfTwoAxes",
                                  Next("\"relu\"", "site_coordinates { scale: [1, 2] }"),
                                  {"node \"next\": scale has 2 values; it needs one for each of the 3 axes, or none"}},
                      BrokenModel{"ShiftIsInfinite",
                                  Next("\"relu\"", "site_coordinates { shift: [0, inf, 0] }"),
                                  {"node \"next\": shift has the value inf; it must be finite"}},
                      BrokenModel{
                          "CoordinatesOfASample",
                          Next("\"pooled\"", "site_coordinates {}",
                               "nodes { name: \"pooled\" inputs: \"relu\" global_pool { reduce: REDUCE_MAX } } "),
                          {"node \"next\": its input \"pooled\" has one row per sample; it needs sites"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Norms, BrokenRowsTest,
    ::testing::Values(
        BrokenModel{"SoftmaxOfLabels",
                    Next("\"best\"", "softmax {}"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"LayerNormEpsilon",
                    Next("\"relu\"", "layer_norm { epsilon: 0 }"),
                    {"node \"next\": epsilon is 0; it must be finite and above 0"}},
        BrokenModel{"LayerNormWeight",
                    Next("\"relu\"", "layer_norm { affine: true }"),
                    {"tensor \"next.weight\": is missing; node \"next\" needs it with shape [4]",
                     "tensor \"next.bias\": is missing; node \"next\" needs it with shape [4]"}},
        BrokenModel{"L2NormEpsilon",
                    Next("\"relu\"", "l2_norm { epsilon: inf }"),
                    {"node \"next\": epsilon is inf; it must be finite and above 0"}},
        BrokenModel{"Slopes",
                    NextWith("prelu {}", "next.weight", {3}),
                    {"node \"next\": has 3 slopes; it needs 1 or one for each of the 4 channels of \"relu\""}},
        BrokenModel{"NoSlopes",
                    Next("\"relu\"", "prelu {}"),
                    {"tensor \"next.weight\": is missing; node \"next\" needs it with shape [?]"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Embeddings, BrokenRowsTest,
    ::testing::Values(BrokenModel{"Channel",
                                  NextWith("embedding { channel: 4 }", "next.weight", {5, 2}),
                                  {"node \"next\": channel is 4; its input \"relu\" has 4 channels"}},
                      BrokenModel{"NoRows",
                                  NextWith("embedding {}", "next.weight", {0, 2}),
                                  {"node \"next\": its table has 0 rows; 1 to 16777216 are possible"}},
                      BrokenModel{"NoTable",
                                  Next("\"relu\"", "embedding {}"),
                                  {"tensor \"next.weight\": is missing; node \"next\" needs it with shape [?, ?]"}},
                      BrokenModel{"FlatTable",
                                  NextWith("embedding {}", "next.weight", {6}),
                                  {"tensor \"next.weight\": has shape [6]; node \"next\" needs [?, ?]"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    GeneralisedMeans, BrokenRowsTest,
    ::testing::Values(
        BrokenModel{"OfAPool",
                    Next("\"relu\"",
                         "pool { reduce: REDUCE_GENERALISED_MEAN kind: KIND_SUBMANIFOLD "
                         "kernel_size: [3, 3, 3] }"),
                    {"node \"next\": reduce is REDUCE_GENERALISED_MEAN, which global_pool alone has"}},
        BrokenModel{"Exponent",
                    Next("\"relu\"", "global_pool { reduce: REDUCE_GENERALISED_MEAN exponent: 0 }"),
                    {"node \"next\": exponent is 0; it must be finite and above 0"}},
        BrokenModel{"Epsilon",
                    Next("\"relu\"", "global_pool { reduce: REDUCE_GENERALISED_MEAN epsilon: -1 }"),
                    {"node \"next\": epsilon is -1; it must be finite and above 0"}},
        BrokenModel{"ExponentOfASum",
                    Next("\"relu\"", "global_pool { reduce: REDUCE_SUM exponent: 3 }"),
                    {"node \"next\": exponent belongs to REDUCE_GENERALISED_MEAN alone"}},
        BrokenModel{"EpsilonOfASum",
                    Next("\"relu\"", "global_pool { reduce: REDUCE_SUM epsilon: 3 }"),
                    {"node \"next\": epsilon belongs to REDUCE_GENERALISED_MEAN alone"}},
        BrokenModel{
            "NoReduce",
            Next("\"relu\"", "global_pool {}"),
            {"node \"next\": reduce must be REDUCE_MAX, REDUCE_AVERAGE, REDUCE_SUM or REDUCE_GENERALISED_MEAN"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Activations, BrokenRowsTest,
    ::testing::Values(
        Activation("AlphaOfRelu", "function: FUNCTION_RELU alpha: 1", "alpha belongs to FUNCTION_ELU alone"),
        Activation("AlphaNotFinite", "function: FUNCTION_ELU alpha: inf", "alpha is inf; it must be finite"),
        Activation("Beta", "function: FUNCTION_SOFTPLUS beta: 0", "beta is 0; it must be above 0"),
        Activation("NoBounds", "function: FUNCTION_CLAMP", "FUNCTION_CLAMP needs minimum, maximum or both"),
        Activation("Bounds", "function: FUNCTION_CLAMP minimum: 2 maximum: 1", "minimum is 2, above the maximum, 1"),
        Activation("BoundNotFinite", "function: FUNCTION_CLAMP maximum: nan", "maximum is nan; it must be finite"),
        Activation("NoExponent", "function: FUNCTION_POWER", "FUNCTION_POWER needs an exponent"),
        Activation("ExponentOfExp", "function: FUNCTION_EXP exponent: 2", "exponent belongs to FUNCTION_POWER alone")),
    CaseName);

constexpr char kOther[] = "nodes { name: \"other\" inputs: \"relu\" linear { out_channels: 2 } } ";

// Both nodes are read, so that only the problems of weights_of are reported.
std::function<void(TestModel&)> Sharing(const std::string& node, const std::string& others = kOther) {
  return [=](TestModel& model) {
    model.graph += others + node;
    model.weights["other.weight"] = FilledTensor({2, 4});
  };
}

INSTANTIATE_TEST_SUITE_P(
    SharedWeights, BrokenRowsTest,
    ::testing::Values(
        BrokenModel{"Unknown",
                    Sharing("nodes { name: \"next\" inputs: \"relu\" linear { out_channels: 2 } weights_of: \"no\" }"),
                    {"node \"next\": weights_of \"no\" does not exist"}},
        BrokenModel{
            "Itself",
            Sharing("nodes { name: \"next\" inputs: \"relu\" linear { out_channels: 2 } weights_of: \"next\" }"),
            {"node \"next\": weights_of names the node itself"}},
        BrokenModel{"OtherOperator",
                    Sharing("nodes { name: \"next\" inputs: \"relu\" prelu {} weights_of: \"other\" }"),
                    {"node \"next\": weights_of \"other\" is of another operator; both must be of the same"}},
        BrokenModel{
            "OtherShape",
            Sharing("nodes { name: \"next\" inputs: \"relu\" linear { out_channels: 3 } weights_of: \"other\" }"),
            {"tensor \"other.weight\": has shape [2, 4]; node \"next\" needs [3, 4]"}},
        BrokenModel{"NoBias",
                    Sharing("nodes { name: \"next\" inputs: \"relu\" weights_of: \"other\" "
                            "linear { out_channels: 2 bias: true } }"),
                    {"tensor \"other.bias\": is missing; node \"next\" needs it with shape [2]"}},
        BrokenModel{"NoTensors",
                    Sharing("nodes { name: \"next\" inputs: \"relu\" activation { function: FUNCTION_RELU } "
                            "weights_of: \"relu\" }"),
                    {"node \"next\": has weights_of, and reads no tensors"}},
        BrokenModel{
            "Chain",
            Sharing("nodes { name: \"next\" inputs: \"relu\" linear { out_channels: 2 } weights_of: \"last\" }"
                    "nodes { name: \"last\" inputs: \"relu\" linear { out_channels: 2 } weights_of: \"other\" }"),
            {"node \"next\": weights_of \"last\" has weights_of \"other\" itself; name the node that has the "
             "tensors"}}),
    CaseName);

// A node and the node whose weights it shares must have one tensor in memory.
TEST(SharedWeightsTest, AreOneTensor) {
  TestModel model = support::SmallModel();
  model.graph +=
      absl::StrCat(kOther,
                   "nodes { name: \"next\" inputs: \"relu\" linear { out_channels: 2 } weights_of: \"other\" }"
                   "outputs { kind: KIND_TENSOR node: \"other\" name: \"a\" }"
                   "outputs { kind: KIND_TENSOR node: \"next\" name: \"b\" }");
  model.weights["other.weight"] = FilledTensor({2, 4});
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<HostTensorPtr> tensors;
  for (const GraphNode& node : graph->nodes) {
    if (node.name == "other" || node.name == "next") tensors.push_back(std::get<LinearOp>(node.op).weight);
  }
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0], tensors[1]);
}

}  // namespace
}  // namespace voxserve::broken_rows_test
