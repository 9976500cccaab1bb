// Tests the error messages for networks with broken rows of points.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_points_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenPointsTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenPointsTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Adds a node "points" with the features of the cloud's points, and a node "next" with these inputs.
std::function<void(TestModel&)> Next(const std::string& inputs, const std::string& op) {
  return Append(absl::StrCat("nodes { name: \"points\" inputs: \"voxels\" point_features {} } nodes { name: \"next\" ",
                             "inputs: [", inputs, "] ", op, " }"));
}

// Adds the nodes of Next, and makes "next" the node of the output of this kind (KIND_LABELS or KIND_SCORES).
std::function<void(TestModel&)> Output(const std::string& kind, const std::string& inputs, const std::string& op) {
  return [=](TestModel& model) {
    Next(inputs, op)(model);
    const std::string name = kind == "KIND_LABELS" ? "labels" : "scores";
    model.Replace(absl::StrCat("kind: ", kind, " node: \"", name, "\""),
                  absl::StrCat("kind: ", kind, " node: \"next\""));
  };
}

INSTANTIATE_TEST_SUITE_P(
    PointFeatures, BrokenPointsTest,
    ::testing::Values(
        BrokenModel{"NotOfTheVoxelize",
                    Append("nodes { name: \"points\" inputs: \"relu\" point_features {} }"),
                    {"node \"points\": its input \"relu\" is not the voxelize"}},
        BrokenModel{"NoInput",
                    Append("nodes { name: \"points\" point_features {} }"),
                    {"node \"points\": has 0 inputs; it needs 1"}},
        BrokenModel{"AddOfSitesAndPoints",
                    Next("\"voxels\", \"points\"", "add {}"),
                    {"node \"next\": its inputs \"voxels\" and \"points\" have different rows"}},
        BrokenModel{"ConcatOfSitesAndPoints",
                    Next("\"points\", \"relu\"", "concat {}"),
                    {"node \"next\": its inputs \"points\" and \"relu\" have different rows"}},
        BrokenModel{"ConvolutionOfPoints",
                    [](TestModel& model) {
                      Next("\"points\"",
                           "sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1] out_channels: 4 }")(model);
                      model.weights["next.weight"] = FilledTensor({1, 2, 4});
                    },
                    {"node \"next\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"PoolOfPoints",
                    Next("\"points\"", "pool { reduce: REDUCE_MAX kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] }"),
                    {"node \"next\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"GlobalPoolOfPoints",
                    Next("\"points\"", "global_pool { reduce: REDUCE_MAX }"),
                    {"node \"next\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"NormOfPoints",
                    Next("\"points\"", "instance_norm {}"),
                    {"node \"next\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"BroadcastOfPoints",
                    Next("\"relu\", \"points\"", "broadcast { function: FUNCTION_ADD }"),
                    {"node \"next\": its second input \"points\" has one row per point; it needs one per sample, as "
                     "global_pool makes"}},
        BrokenModel{"LinearOfPoints",
                    [](TestModel& model) {
                      Next("\"points\"", "linear { out_channels: 3 }")(model);
                      model.weights["next.weight"] = FilledTensor({3, 8});
                    },
                    {"tensor \"next.weight\": has shape [3, 8]; node \"next\" needs [3, 2]"}}),
    CaseName);

// Adds a node "offsets" that reads `input`.
std::function<void(TestModel&)> Offsets(const std::string& input, const std::string& parameters) {
  return Append(absl::StrCat("nodes { name: \"offsets\" inputs: \"", input, "\" point_offsets { ", parameters, " } }"));
}

INSTANTIATE_TEST_SUITE_P(
    PointOffsets, BrokenPointsTest,
    ::testing::Values(
        BrokenModel{"OffsetsFromNothing",
                    Offsets("voxels", ""),
                    {"node \"offsets\": reference must be REFERENCE_MEAN or REFERENCE_CENTER"}},
        BrokenModel{"PointsOfACentre",
                    Offsets("voxels", "reference: REFERENCE_CENTER max_points: 3"),
                    {"node \"offsets\": max_points belongs to REFERENCE_MEAN alone"}},
        BrokenModel{"OfATensor",
                    Offsets("relu", "reference: REFERENCE_MEAN"),
                    {"node \"offsets\": its input \"relu\" is not the voxelize"}},
        BrokenModel{
            "CentresOfCellsThatAreCountedAnew",
            [](TestModel& model) {
              Offsets("voxels", "reference: REFERENCE_CENTER")(model);
              model.Replace("origin: ORIGIN_RANGE", "origin: ORIGIN_MINIMUM");
            },
            {"node \"offsets\": REFERENCE_CENTER needs ORIGIN_RANGE or ORIGIN_ZERO: with ORIGIN_MINIMUM cells are "
             "counted anew for every sample"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    PointToVoxel, BrokenPointsTest,
    ::testing::Values(
        BrokenModel{"NoReduceOfPoints",
                    Next("\"points\", \"voxels\"", "point_to_voxel {}"),
                    {"node \"next\": reduce must be REDUCE_MAX, REDUCE_AVERAGE or REDUCE_SUM"}},
        BrokenModel{
            "OneInput",
            Next("\"points\"", "point_to_voxel { reduce: REDUCE_SUM }"),
            {"node \"next\": its only input \"points\" has one row per point; it needs sites, or the voxelize as its "
             "second input"}},
        BrokenModel{"FirstOfSites",
                    Next("\"relu\"", "point_to_voxel { reduce: REDUCE_SUM max_points: 3 sites_of: \"down\" }"),
                    {"node \"next\": max_points needs rows of points: the first sites differ between devices"}},
        BrokenModel{"ThreeInputsToVoxels",
                    Next("\"points\", \"voxels\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM }"),
                    {"node \"next\": has 3 inputs; without has_empty_slots it needs 1 to 2"}},
        BrokenModel{"FourInputsToVoxels",
                    Next("\"points\", \"voxels\", \"voxels\", \"voxels\"", "point_to_voxel { reduce: REDUCE_MAX }"),
                    {"node \"next\": has 4 inputs; it needs 1 to 3"}},
        BrokenModel{
            "SlotsWithoutTheirRows",
            Next("\"points\", \"voxels\"", "point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true }"),
            {"node \"next\": has 2 inputs; with has_empty_slots it needs 3"}},
        BrokenModel{"SlotsOfASum",
                    Next("\"points\", \"voxels\", \"voxels\"",
                         "point_to_voxel { reduce: REDUCE_SUM max_points: 3 has_empty_slots: true }"),
                    {"node \"next\": has_empty_slots needs REDUCE_MAX, max_points and no sites_of"}},
        BrokenModel{
            "SlotsWithoutANumber",
            Next("\"points\", \"voxels\", \"voxels\"", "point_to_voxel { reduce: REDUCE_MAX has_empty_slots: true }"),
            {"node \"next\": has_empty_slots needs REDUCE_MAX, max_points and no sites_of"}},
        BrokenModel{
            "SlotsOfCoarseSites",
            Next("\"points\", \"voxels\", \"voxels\"",
                 "point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true sites_of: \"down\" }"),
            {"node \"next\": has_empty_slots needs REDUCE_MAX, max_points and no sites_of"}},
        BrokenModel{"SlotsOfPoints",
                    Next("\"points\", \"points\", \"voxels\"",
                         "point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true }"),
                    {"node \"next\": its second input \"points\" is not on the voxelize's sites"}},
        BrokenModel{"SlotsOfOtherChannels",
                    Next("\"points\", \"relu\", \"voxels\"",
                         "point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true }"),
                    {"node \"next\": reduces 2 channels of \"points\" and 4 of \"relu\""}},
        BrokenModel{"ThirdNotTheVoxelize",
                    Next("\"points\", \"voxels\", \"relu\"",
                         "point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true }"),
                    {"node \"next\": its third input \"relu\" is not the voxelize"}},
        BrokenModel{"FromCoarserSites",
                    Next("\"down\"", "point_to_voxel { reduce: REDUCE_SUM }"),
                    {"node \"next\": its input \"down\" has a coarser unit than the sites, on axis 0"}},
        BrokenModel{"OfSites",
                    Next("\"relu\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM }"),
                    {"node \"next\": its first input \"relu\" has one row per site; it needs one row per point"}},
        BrokenModel{"OfLabelsOfPoints",
                    Next("\"labels\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM }"),
                    {"node \"next\": its input \"labels\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"SecondNotTheVoxelize",
                    Next("\"points\", \"relu\"", "point_to_voxel { reduce: REDUCE_SUM }"),
                    {"node \"next\": its second input \"relu\" is not the voxelize"}},
        BrokenModel{"UnknownSites",
                    Next("\"points\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM sites_of: \"dawn\" }"),
                    {"node \"next\": sites_of \"dawn\" does not exist"}},
        BrokenModel{"SitesOfAnOutput",
                    Next("\"points\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM sites_of: \"scores\" }"),
                    {"node \"next\": sites_of \"scores\" has one row per point; sites are those of voxels"}},
        BrokenModel{"SitesInACycle",
                    Next("\"points\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM sites_of: \"next\" }"),
                    {"model.textproto: nodes form a cycle, each depending on the next: \"next\" -> \"next\""}},
        // The rows of "next" are on the sites of "down", so they cannot be added to rows of points.
        BrokenModel{"OnItsSites",
                    [](TestModel& model) {
                      Next("\"points\", \"voxels\"", "point_to_voxel { reduce: REDUCE_SUM sites_of: \"down\" }")(model);
                      model.graph += "nodes { name: \"late\" inputs: [\"next\", \"points\"] add {} }";
                    },
                    {"node \"late\": its inputs \"next\" and \"points\" have different rows"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Devoxelize, BrokenPointsTest,
    ::testing::Values(
        BrokenModel{
            "OneInputToDevoxelize", Next("\"down\"", "devoxelize {}"), {"node \"next\": has 1 inputs; it needs 2"}},
        BrokenModel{"OfPoints",
                    Next("\"points\", \"voxels\"", "devoxelize {}"),
                    {"node \"next\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"OfVoxelLabels",
                    Next("\"best\", \"voxels\"", "devoxelize {}"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{
            "AtPointsOfATensor",
            Next("\"down\", \"points\"", "devoxelize {}"),
            {"node \"next\": its second input \"points\" has one row per point; it must be the voxelize or a tensor "
             "on sites"}},
        BrokenModel{"AtLabels",
                    Next("\"down\", \"best\"", "devoxelize {}"),
                    {"node \"next\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"AtCoarserSites",
                    Next("\"relu\", \"down\"", "devoxelize {}"),
                    {"node \"next\": its second input \"down\" has a coarser unit than its first, \"relu\", on axis "
                     "0"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Outputs, BrokenPointsTest,
    ::testing::Values(
        BrokenModel{"LabelsOfPointFeatures",
                    Output("KIND_LABELS", "\"points\"", "activation { function: FUNCTION_RELU }"),
                    {"output \"next\": KIND_LABELS needs an argmax; node \"next\" computes features"}},
        BrokenModel{"ScoresOfPointLabels",
                    Output("KIND_SCORES", "\"points\"", "argmax {}"),
                    {"output \"next\": KIND_SCORES needs features; node \"next\" computes labels"}},
        BrokenModel{
            "ScoresOfOtherClasses",
            Output("KIND_SCORES", "\"points\"", "activation { function: FUNCTION_RELU }"),
            {"model.textproto: its scores have 2 channels (node \"next\"), its labels 3 classes (node \"best\")"}},
        BrokenModel{"ScoresOfSites",
                    Output("KIND_SCORES", "\"relu\"", "activation { function: FUNCTION_RELU }"),
                    {"output \"next\": this node is neither a voxel_to_point nor on points"}},
        BrokenModel{"LabelsOfSites",
                    Output("KIND_LABELS", "\"head\"", "argmax {}"),
                    {"output \"next\": this node is neither a voxel_to_point nor on points"}},
        BrokenModel{"ScoresOfASample",
                    [](TestModel& model) {
                      model.Replace("name: \"voxels\"\n", "name: \"voxels\" inputs: \"sample\"\n");
                      model.Replace("KIND_SCORES node: \"scores\"", "KIND_SCORES node: \"sample\"");
                      model.graph += "nodes { name: \"sample\" farthest_point_sample { num_points: 9 } }";
                    },
                    {"output \"sample\": this node is neither a voxel_to_point nor on points"}}),
    CaseName);

// The last level has one site per 2^35 voxels on each axis, which is too far from a voxel's size to compute positions.
TEST(PointUnitsTest, TooFarFromAVoxel) {
  TestModel model = support::SmallModel();
  std::string last = "relu";
  for (int i = 0; i < 5; ++i) {
    const std::string name = absl::StrCat("far", i);
    model.graph += absl::StrCat("nodes { name: \"", name, "\" inputs: \"", last,
                                "\" pool { reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [1, 1, "
                                "1] stride: [128, 128, 128] } }\n");
    last = name;
  }
  model.graph += absl::StrCat(
      "nodes { name: \"points\" inputs: \"voxels\" point_features {} } nodes { name: \"at\" inputs: [\"", last,
      "\", \"voxels\"] devoxelize {} } nodes { name: \"to\" inputs: [\"points\", \"voxels\"] point_to_voxel { reduce: "
      "REDUCE_MAX sites_of: \"",
      last, "\" } }");
  const absl::StatusOr<Graph> graph = Load(model);
  EXPECT_THAT(ProblemsOf(graph.status()),
              ::testing::ElementsAre("node \"at\": its input \"far4\" has a unit too far from that of \"voxels\"",
                                     "node \"to\": sites_of \"far4\" has a unit too far from a voxel's"));
}

// Adds a node "position" that reads `input`.
std::function<void(TestModel&)> Position(const std::string& input, const std::string& parameters) {
  return Append(
      absl::StrCat("nodes { name: \"position\" inputs: \"", input, "\" site_position { ", parameters, " } }"));
}

INSTANTIATE_TEST_SUITE_P(
    SitePosition, BrokenPointsTest,
    ::testing::Values(BrokenModel{"NoPoint",
                                  Position("voxels", "scale: [1, 1, 1]"),
                                  {"node \"position\": of must be OF_FIRST_POINT or OF_MEAN_POINT"}},
                      BrokenModel{"PositionOfOtherSites",
                                  Position("relu", "of: OF_MEAN_POINT"),
                                  {"node \"position\": its input \"relu\" is not the voxelize"}},
                      BrokenModel{"NoInputOfPosition",
                                  Append("nodes { name: \"position\" site_position { of: OF_FIRST_POINT } }"),
                                  {"node \"position\": has 0 inputs; it needs 1"}},
                      BrokenModel{
                          "ScaleOfTwoAxes",
                          Position("voxels", "of: OF_FIRST_POINT scale: [1, 2]"),
                          {"node \"position\": scale has 2 values; it needs one for each of the 3 axes, or none"}},
                      BrokenModel{"ShiftIsNotFinite",
                                  Position("voxels", "of: OF_FIRST_POINT shift: [0, inf, nan]"),
                                  {"node \"position\": shift has the value inf; it must be finite",
                                   "node \"position\": shift has the value nan; it must be finite"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_points_test
