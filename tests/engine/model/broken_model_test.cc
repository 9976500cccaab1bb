// Tests the error messages for every kind of broken network. There must be exactly the expected messages and no others,
// so that one mistake is reported once.

#include "tests/engine/model/broken_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve::broken_model_test {
namespace {

using ::testing::ElementsAre;
using voxserve::support::FilledTensor;
using voxserve::support::FloatTensor;
using voxserve::support::SmallModel;
using voxserve::support::TestModel;

class BrokenModelTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenModelTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Returns the names of the activation functions that the file format has.
std::string FunctionNames() {
  const google::protobuf::EnumDescriptor& functions = *model::v1::Activation::Function_descriptor();
  std::vector<std::string> names;
  for (int i = 1; i < functions.value_count(); ++i) names.push_back(functions.value(i)->name());
  return absl::StrJoin(names, ", ");
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Structure, BrokenModelTest,
    ::testing::Values(
        // The parser reports the place where it stopped, which is after the value.
        BrokenModel{"SyntaxError",
                    Text("reduce: REDUCE_MEAN", "reduce: REDUCE_MEDIAN"),
                    {"model.textproto:12:5: Unknown enumeration value of \"REDUCE_MEDIAN\" for field \"reduce\"."}},
        BrokenModel{"UnknownField",
                    Text("description", "remark"),
                    {"model.textproto:2:7: Message type \"voxserve.model.v1.Model\" has no field named \"remark\"."}},
        // The parser skips values of every form: a message, a list, a message of unknown fields.
        BrokenModel{
            "UnknownFieldsAtOnce",
            [](TestModel& model) {
              Text("description", "remark")(model);
              Text("reduce: REDUCE_MEAN", "reduce: REDUCE_MEAN cells: [1, 2] limits { low: -1 }")(model);
              model.graph += "nodes { name: \"gate\" inputs: [\"relu\"] gate { by: \"relu\" } }\nversion: 2\n";
            },
            {"model.textproto:2:7: Message type \"voxserve.model.v1.Model\" has no field named \"remark\".",
             "model.textproto:11:30: Message type \"voxserve.model.v1.Voxelize\" has no field named \"cells\".",
             "model.textproto:11:46: Message type \"voxserve.model.v1.Voxelize\" has no field named \"limits\".",
             "model.textproto:30:44: Message type \"voxserve.model.v1.Node\" has no field named \"gate\".",
             "model.textproto:31:8: Message type \"voxserve.model.v1.Model\" has no field named \"version\"."}},
        BrokenModel{"UnknownFieldBeforeAnError",
                    [](TestModel& model) {
                      Text("description", "remark")(model);
                      Text("reduce: REDUCE_MEAN", "reduce: REDUCE_MEDIAN")(model);
                    },
                    {"model.textproto:2:7: Message type \"voxserve.model.v1.Model\" has no field named \"remark\".",
                     "model.textproto:12:5: Unknown enumeration value of \"REDUCE_MEDIAN\" for field \"reduce\"."}},
        BrokenModel{"Empty",
                    [](TestModel& model) { model = TestModel(); },
                    {"model.textproto: has no nodes", "model.textproto: has no outputs"}},
        BrokenModel{"Dimension",
                    Text("description", "dimension: 5 description"),
                    {"model.textproto: dimension is 5; it must be 1 to 4"}},
        BrokenModel{"NoName",
                    Text("name: \"sum\" ", ""),
                    {"node number 6: has no name", "node \"both\": its input \"sum\" does not exist"}},
        BrokenModel{"DuplicateName",
                    Append("nodes { name: \"relu\" inputs: \"norm\" activation { function: FUNCTION_RELU } }"),
                    {"node \"relu\": another node has the same name"}},
        BrokenModel{"UnknownInput",
                    Text("inputs: [\"both\"]", "inputs: [\"bath\"]"),
                    {"node \"head\": its input \"bath\" does not exist"}},
        BrokenModel{"TooFewInputs", Text("[\"up\", \"relu\"]", "[\"up\"]"), {"node \"sum\": has 1 inputs; it needs 2"}},
        BrokenModel{"ConcatOfOne",
                    Text("[\"sum\", \"conv\"]", "[\"sum\"]"),
                    {"node \"both\": has 1 inputs; it needs 2 or more"}},
        BrokenModel{"VoxelizeWithInput",
                    Text("name: \"voxels\"\n", "name: \"voxels\" inputs: \"voxels2\"\n"),
                    {"node \"voxels\": its input \"voxels2\" does not exist"}},
        BrokenModel{"VoxelizeOfTwoSamples",
                    [](TestModel& model) {
                      Text("name: \"voxels\"\n", "name: \"voxels\" inputs: [\"near\", \"far\"]\n")(model);
                      model.graph +=
                          "nodes { name: \"near\" farthest_point_sample { num_points: 1 } }\n"
                          "nodes { name: \"far\" farthest_point_sample { num_points: 2 } }\n";
                    },
                    {"node \"voxels\": has 2 inputs; it needs 0 to 1"}},
        BrokenModel{"SampleOfNoPoints",
                    [](TestModel& model) {
                      Text("name: \"voxels\"\n", "name: \"voxels\" inputs: \"sample\"\n")(model);
                      model.graph += "nodes { name: \"sample\" farthest_point_sample {} }";
                    },
                    {"node \"sample\": num_points is 0; it must be 1 to 2147483647"}},
        BrokenModel{"SampleOfTooManyPoints",
                    [](TestModel& model) {
                      Text("name: \"voxels\"\n", "name: \"voxels\" inputs: \"sample\"\n")(model);
                      model.graph += "nodes { name: \"sample\" farthest_point_sample { num_points: 2147483648 } }";
                    },
                    {"node \"sample\": num_points is 2147483648; it must be 1 to 2147483647"}},
        BrokenModel{"SampleOfOtherAxes",
                    [](TestModel& model) {
                      Text("name: \"voxels\"\n", "name: \"voxels\" inputs: \"sample\"\n")(model);
                      Text("reduce: REDUCE_MEAN", "axes: [\"x\", \"z\", \"y\"] reduce: REDUCE_MEAN")(model);
                      model.graph += "nodes { name: \"sample\" farthest_point_sample { num_points: 9 } }";
                    },
                    {"node \"voxels\": its input \"sample\" needs axes that begin with x, y and z; they are x, z, y"}},
        BrokenModel{"SampleWithInput",
                    Append("nodes { name: \"sample\" inputs: \"relu\" farthest_point_sample { num_points: 9 } }"),
                    {"node \"sample\": has 1 inputs; it needs 0"}},
        BrokenModel{"SampleThatALayerReads",
                    [](TestModel& model) {
                      Text("inputs: [\"both\"]", "inputs: [\"sample\"]")(model);
                      model.graph += "nodes { name: \"sample\" farthest_point_sample { num_points: 9 } }";
                    },
                    {"node \"head\": its input \"sample\" is a sample of points; only voxelize reads that"}},
        BrokenModel{"IdleSample",
                    Append("nodes { name: \"sample\" farthest_point_sample { num_points: 9 } }"),
                    {"node \"sample\": no output depends on it"}},
        BrokenModel{
            "Cycle",
            Text("[\"up\", \"relu\"]", "[\"up\", \"both\"]"),
            {"model.textproto: nodes form a cycle, each depending on the next: \"sum\" -> \"both\" -> \"sum\""}},
        BrokenModel{"SelfCycle",
                    Text("[\"both\"]", "[\"head\"]"),
                    {"model.textproto: nodes form a cycle, each depending on the next: \"head\" -> \"head\""}},
        BrokenModel{"NoOperator", Text("add {}", ""), {"node \"sum\": has no operator"}},
        BrokenModel{"NoFunction",
                    Text("function: FUNCTION_RELU", ""),
                    {absl::StrCat("node \"relu\": function must be one of ", FunctionNames())}},
        BrokenModel{"SlopeOfRelu",
                    Text("function: FUNCTION_RELU", "function: FUNCTION_RELU negative_slope: 0"),
                    {"node \"relu\": negative_slope belongs to FUNCTION_LEAKY_RELU alone"}},
        BrokenModel{"SlopeNotFinite",
                    Text("function: FUNCTION_RELU", "function: FUNCTION_LEAKY_RELU negative_slope: nan"),
                    {"node \"relu\": negative_slope is nan; it must be finite"}},
        BrokenModel{"SecondVoxelize",
                    [](TestModel& model) {
                      const size_t begin = model.graph.find("nodes {");
                      const size_t end = model.graph.find("nodes { name: \"conv\"");
                      std::string node = model.graph.substr(begin, end - begin);
                      node.replace(node.find("\"voxels\""), 8, "\"second\"");
                      model.graph += node;
                    },
                    {"node \"second\": is the second voxelize; node \"voxels\" is the first"}},
        BrokenModel{"IdleNode",
                    Append("nodes { name: \"idle\" inputs: \"relu\" activation { function: FUNCTION_RELU } }"),
                    {"node \"idle\": no output depends on it"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Outputs, BrokenModelTest,
    ::testing::Values(
        BrokenModel{"None",
                    [](TestModel& model) { model.graph.resize(model.graph.find("outputs")); },
                    {"model.textproto: has no outputs"}},
        BrokenModel{"NoLabels",
                    Text("outputs { kind: KIND_LABELS node: \"labels\" }", ""),
                    {"model.textproto: has an output of KIND_SCORES and none of KIND_LABELS; KIND_TENSOR answers with "
                     "features alone"}},
        BrokenModel{"TwoLabels",
                    Append("outputs { kind: KIND_LABELS node: \"labels\" }"),
                    {"output \"labels\": is the second one of KIND_LABELS"}},
        BrokenModel{"TwoScores",
                    Append("outputs { kind: KIND_SCORES node: \"scores\" }"),
                    {"output \"scores\": is the second one of KIND_SCORES"}},
        BrokenModel{"NoKind",
                    Text("kind: KIND_SCORES", ""),
                    {"output \"scores\": kind must be KIND_LABELS, KIND_SCORES, KIND_BOXES or KIND_TENSOR"}},
        BrokenModel{
            "UnknownNode", Text("node: \"scores\"", "node: \"score\""), {"output \"score\": this node does not exist"}},
        BrokenModel{"NotPerPoint",
                    Text("node: \"scores\"", "node: \"head\""),
                    {"output \"head\": this node is neither a voxel_to_point nor on points"}},
        BrokenModel{"LabelsOfFeatures",
                    Text("KIND_LABELS node: \"labels\"", "KIND_LABELS node: \"scores\""),
                    {"output \"scores\": KIND_LABELS needs an argmax; node \"head\" computes features"}},
        BrokenModel{"ScoresOfLabels",
                    Text("KIND_SCORES node: \"scores\"", "KIND_SCORES node: \"labels\""),
                    {"output \"labels\": KIND_SCORES needs features; node \"best\" computes labels"}},
        BrokenModel{"ClassesDiffer",
                    Text("[\"head\", \"voxels\"]", "[\"both\", \"voxels\"]"),
                    {"model.textproto: its scores have 8 channels (node \"both\"), its labels 3 classes (node "
                     "\"best\")"}},
        BrokenModel{"TooManyClasses",
                    [](TestModel& model) {
                      model.Replace("linear { out_channels: 3", "linear { out_channels: 65536");
                      model.weights["head.weight"] = FilledTensor({65536, 8});
                      model.weights["head.bias"] = FilledTensor({65536});
                    },
                    {"node \"best\": has 65536 classes; at most 65535 are possible"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Voxelize, BrokenModelTest,
    ::testing::Values(
        BrokenModel{"Missing",
                    [](TestModel& model) {
                      model = TestModel();
                      model.graph =
                          "nodes { name: \"a\" inputs: \"a\" add {} } outputs { kind: KIND_LABELS node: \"a\" }";
                    },
                    {"model.textproto: nodes form a cycle, each depending on the next: \"a\" -> \"a\"",
                     "node \"a\": has 1 inputs; it needs 2", "model.textproto: no node is a voxelize"}},
        BrokenModel{"SizeLength",
                    Text("[0.5, 0.5, 1]", "[0.5, 0.5]"),
                    {"node \"voxels\": voxel_size has 2 values; the network has 3 axes"}},
        BrokenModel{"SizeZero",
                    Text("[0.5, 0.5, 1]", "[0.5, 0, -1]"),
                    {"node \"voxels\": voxel_size[1] is 0; it must be finite and above 0",
                     "node \"voxels\": voxel_size[2] is -1; it must be finite and above 0"}},
        BrokenModel{"NoRounding",
                    Text("rounding: ROUNDING_FLOOR", ""),
                    {"node \"voxels\": rounding must be ROUNDING_HALF_EVEN or ROUNDING_FLOOR"}},
        BrokenModel{
            "NoOriginNoReduce",
            [](TestModel& model) { model.Replace("origin: ORIGIN_RANGE", "").Replace("reduce: REDUCE_MEAN", ""); },
            {"node \"voxels\": origin must be ORIGIN_MINIMUM, ORIGIN_RANGE or ORIGIN_ZERO",
             "node \"voxels\": reduce must be REDUCE_FIRST or REDUCE_MEAN",
             "node \"voxels\": max_points_per_voxel is 5; it belongs to REDUCE_MEAN alone"}},
        BrokenModel{"LimitOfFirst",
                    Text("REDUCE_MEAN", "REDUCE_FIRST"),
                    {"node \"voxels\": max_points_per_voxel is 5; it belongs to REDUCE_MEAN alone"}},
        BrokenModel{
            "NoRange",
            [](TestModel& model) { model.Replace("range_min: [-8, -8, -4]", "").Replace("range_max: [8, 8, 4]", ""); },
            {"node \"voxels\": ORIGIN_RANGE needs range_min and range_max"}},
        BrokenModel{"HalfARange",
                    Text("range_max: [8, 8, 4]", ""),
                    {"node \"voxels\": range_max has 0 values; the network has 3 axes"}},
        BrokenModel{"EmptyRange",
                    Text("range_max: [8, 8, 4]", "range_max: [8, -8, 4]"),
                    {"node \"voxels\": axis 1 has the range -8 to -8; it must be finite and not empty"}},
        BrokenModel{"HugeRange",
                    Text("range_max: [8, 8, 4]", "range_max: [8, 1e9, 4]"),
                    {"node \"voxels\": axis 1 has 2000000016 voxels in its range; 1 to 130944 are possible in 3 "
                     "dimensions"}},
        BrokenModel{"NoVoxelInRange",
                    Text("voxel_size: [0.5, 0.5, 1]", "voxel_size: [0.5, 0.5, 100]"),
                    {"node \"voxels\": axis 2 has 0 voxels in its range; 1 to 130944 are possible in 3 dimensions"}},
        BrokenModel{"SpatialShapeOfAnotherOrigin",
                    [](TestModel& model) {
                      model.Replace("origin: ORIGIN_RANGE", "origin: ORIGIN_ZERO spatial_shape: [32, 32, 8]");
                    },
                    {"node \"voxels\": spatial_shape belongs to ORIGIN_RANGE alone"}},
        BrokenModel{"SpatialShapeLength",
                    Text("origin: ORIGIN_RANGE", "origin: ORIGIN_RANGE spatial_shape: 33"),
                    {"node \"voxels\": spatial_shape has 1 values; the network has 3 axes"}},
        BrokenModel{"SpatialShapeOutOfBounds",
                    Text("origin: ORIGIN_RANGE", "origin: ORIGIN_RANGE spatial_shape: [31, 32, 130945]"),
                    {"node \"voxels\": spatial_shape[0] is 31; the range has 32 voxels there, and at most 130944 are "
                     "possible in 3 dimensions",
                     "node \"voxels\": spatial_shape[2] is 130945; the range has 8 voxels there, and at most 130944 "
                     "are possible in 3 dimensions"}},
        BrokenModel{"NoFeatures",
                    [](TestModel& model) {
                      model.Replace("features { name: \"x\" unit: \"m\" }", "")
                          .Replace("features { name: \"intensity\" unit: \"1\" scale: 2 default_value: 0 }", "");
                    },
                    {"node \"voxels\": has no features"}},
        BrokenModel{"TooManyFeatures",
                    [](TestModel& model) {
                      std::string many;
                      for (int i = 0; i < 61; ++i) many += absl::StrCat("features { name: \"f", i, "\" } ");
                      model.Replace("features { name: \"x\" unit: \"m\" }", many);
                    },
                    {"node \"voxels\": has 62 features; at most 36 are possible",
                     "tensor \"conv.weight\": has shape [27, 2, 4]; node \"conv\" needs [27, 62, 4]"}},
        BrokenModel{"FeatureTwice",
                    Text("name: \"x\"", "name: \"intensity\""),
                    {"node \"voxels\": feature \"intensity\" appears twice"}},
        BrokenModel{"FeatureWithoutName", Text("name: \"x\" ", ""), {"node \"voxels\": feature number 0 has no name"}},
        BrokenModel{"FeatureNumbers",
                    Text("scale: 2 default_value: 0", "scale: 0 shift: inf default_value: nan"),
                    {"node \"voxels\": feature \"intensity\" has scale 0; it must be finite and not 0",
                     "node \"voxels\": feature \"intensity\" has shift inf; it must be finite",
                     "node \"voxels\": feature \"intensity\" has default_value nan; it must be finite"}},
        BrokenModel{
            "FeatureRange",
            Text("default_value: 0", "default_value: 0 range { low: 1 high: 1 }"),
            {"node \"voxels\": feature \"intensity\" has the range 1 to 1; low must be less than high, and both "
             "finite"}},
        BrokenModel{"FeatureRangeWithoutEnd",
                    Text("default_value: 0", "default_value: 0 range { high: inf }"),
                    {"node \"voxels\": feature \"intensity\" has the range 0 to inf; low must be less than high, and "
                     "both finite"}},
        BrokenModel{"Axes",
                    Text("reduce:", "axes: [\"x\", \"x\", \"\", \"z\"] reduce:"),
                    {"node \"voxels\": axes has 4 values; the network has 3 axes",
                     "node \"voxels\": axis \"x\" appears twice", "node \"voxels\": an axis has no name"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Features, BrokenModelTest,
    ::testing::Values(
        BrokenModel{"AddChannels",
                    Text("[\"up\", \"relu\"]", "[\"up\", \"voxels\"]"),
                    {"node \"sum\": adds 4 channels of \"up\" and 2 of \"voxels\""}},
        BrokenModel{"AddSites",
                    Text("[\"up\", \"relu\"]", "[\"down\", \"relu\"]"),
                    {"node \"sum\": its inputs \"down\" and \"relu\" are on different sites"}},
        BrokenModel{"ConcatSites",
                    Text("[\"sum\", \"conv\"]", "[\"sum\", \"conv\", \"down\"]"),
                    {"node \"both\": its inputs \"sum\" and \"down\" are on different sites"}},
        BrokenModel{"ConcatWidth",
                    [](TestModel& model) {
                      std::string inputs = "\"conv\"";
                      for (int i = 0; i < 8192; ++i) inputs += ", \"both\"";
                      model.graph += "nodes { name: \"wide\" inputs: [" + inputs + "] concat {} }";
                    },
                    {"node \"wide\": has 65540 channels; at most 65536 are possible"}},
        BrokenModel{"ReadsLabels",
                    Append("nodes { name: \"late\" inputs: \"best\" activation { function: FUNCTION_RELU } }"),
                    {"node \"late\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"ReadsLabelsOfPoints",
                    Append("nodes { name: \"late\" inputs: \"labels\" activation { function: FUNCTION_RELU } }"),
                    {"node \"late\": its input \"labels\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"PointsTwice",
                    Append("nodes { name: \"late\" inputs: [\"labels\", \"voxels\"] voxel_to_point {} }"),
                    {"node \"late\": its first input \"labels\" has one row per point already"}},
        BrokenModel{"PointsOfOtherSites",
                    Append("nodes { name: \"late\" inputs: [\"down\", \"voxels\"] voxel_to_point {} }"),
                    {"node \"late\": its first input \"down\" is not on the voxelize's sites"}},
        BrokenModel{"PointsWithoutVoxelize",
                    Text("[\"head\", \"voxels\"]", "[\"head\", \"relu\"]"),
                    {"node \"scores\": its second input \"relu\" is not the voxelize"}},
        BrokenModel{"Epsilon",
                    Text("epsilon: 0.001", "epsilon: -1"),
                    {"node \"norm\": epsilon is -1; it must be finite and not negative"}},
        BrokenModel{"Variance",
                    [](TestModel& model) {
                      model.weights["norm.running_var"] = FloatTensor({4}, {1, 2, -0.5F, 1});
                    },
                    {"node \"norm\": running_var[2] is -0.5 and epsilon 0.001; variances must not be negative, and "
                     "their sum with epsilon above 0"}},
        BrokenModel{"ZeroVarianceWithoutEpsilon",
                    [](TestModel& model) {
                      model.Replace("epsilon: 0.001", "epsilon: 0");
                      model.weights["norm.running_var"] = FloatTensor({4}, {1, 2, 3, 0});
                    },
                    {"node \"norm\": running_var[3] is 0 and epsilon 0; variances must not be negative, and their sum "
                     "with epsilon above 0"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Tensors, BrokenModelTest,
    ::testing::Values(BrokenModel{"Missing",
                                  [](TestModel& model) { model.weights.erase("norm.running_mean"); },
                                  {"tensor \"norm.running_mean\": is missing; node \"norm\" needs it with shape [4]"}},
                      BrokenModel{"Unused",
                                  [](TestModel& model) { model.weights["up.bias"] = FilledTensor({4}); },
                                  {"tensor \"up.bias\": is used by no node"}},
                      BrokenModel{"Shape",
                                  [](TestModel& model) {
                                    model.weights["conv.weight"] = FilledTensor({27, 4, 2});
                                  },
                                  {"tensor \"conv.weight\": has shape [27, 4, 2]; node \"conv\" needs [27, 2, 4]"}},
                      BrokenModel{"LinearTransposed",
                                  [](TestModel& model) {
                                    model.weights["head.weight"] = FilledTensor({8, 3});
                                  },
                                  {"tensor \"head.weight\": has shape [8, 3]; node \"head\" needs [3, 8]"}},
                      BrokenModel{"Integers",
                                  [](TestModel& model) {
                                    model.weights["head.bias"] = {"I32", {3}, std::string(12, '\1')};
                                  },
                                  {"tensor \"head.bias\": is stored as I32; weights are F32, F16 or BF16"}},
                      BrokenModel{
                          "NotFinite",
                          [](TestModel& model) {
                            model.weights["head.bias"] = FloatTensor({3}, {1, kNan, -INFINITY});
                          },
                          {"tensor \"head.bias\": has 2 of 3 values that are NaN or infinite, the first at index 1"}},
                      BrokenModel{"ScaleOfNoNode",
                                  [](TestModel& model) { model.weights["other.scale"] = FloatTensor({1}, {1}); },
                                  {"tensor \"other.scale\": is used by no node"}},
                      BrokenModel{"ScaleOfManyValues",
                                  [](TestModel& model) { model.weights["relu.scale"] = FilledTensor({4}); },
                                  {"tensor \"relu.scale\": has shape [4]; node \"relu\" needs [1]"}},
                      BrokenModel{"ScaleIsNaN",
                                  [](TestModel& model) { model.weights["relu.scale"] = FloatTensor({1}, {NAN}); },
                                  {"tensor \"relu.scale\": has 1 of 1 values that are NaN or infinite, the first at "
                                   "index 0"}},
                      BrokenModel{"ScaleIsZero",
                                  [](TestModel& model) { model.weights["relu.scale"] = FloatTensor({1}, {0}); },
                                  {"tensor \"relu.scale\": is 0; a scale is at least 1.17549e-38"}},
                      BrokenModel{"ScaleIsNegative",
                                  [](TestModel& model) { model.weights["relu.scale"] = FloatTensor({1}, {-1}); },
                                  {"tensor \"relu.scale\": is -1; a scale is at least 1.17549e-38"}},
                      BrokenModel{"ScaleIsSubnormal",
                                  [](TestModel& model) { model.weights["relu.scale"] = FloatTensor({1}, {1e-39f}); },
                                  {"tensor \"relu.scale\": is 1e-39; a scale is at least 1.17549e-38"}},
                      // A problem in a tensor's entry must not be reported a second time as a missing tensor.
                      BrokenModel{"WrongSize",
                                  [](TestModel& model) { model.weights["head.bias"].bytes.resize(8); },
                                  {"tensor \"head.bias\": has 8 bytes, but F32 [3] takes 12"}}),
    CaseName);

TEST(BrokenModelsTest, AreToldManyProblemsAtOnce) {
  TestModel model = SmallModel();
  model.Replace("epsilon: 0.001", "epsilon: nan").Replace("\"up\", \"relu\"", "\"up\", \"reLU\"");
  model.weights.erase("down.weight");
  model.weights["extra"] = FilledTensor({1});
  EXPECT_THAT(ProblemsOf(Load(model).status()),
              ElementsAre("node \"sum\": its input \"reLU\" does not exist",
                          "node \"norm\": epsilon is nan; it must be finite and not negative",
                          "tensor \"down.weight\": is missing; node \"down\" needs it with shape [8, 4, 3]",
                          "tensor \"extra\": is used by no node"));
}

}  // namespace
}  // namespace voxserve::broken_model_test
