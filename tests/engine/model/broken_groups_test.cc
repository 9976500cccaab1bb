// Tests the error messages for networks with broken groups, and for attention that names them wrongly. Tests also that
// groups which are in order are taken.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_groups_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenGroupsTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenGroupsTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

constexpr char kGlobal[] = "nodes { name: \"global\" inputs: \"relu\" global_pool { reduce: REDUCE_SUM } }\n";
constexpr char kHilbert[] = "curve: CURVE_HILBERT depth: DEPTH_OWN_LEVEL size: 8 tail: TAIL_BORROWS";
constexpr char kFirstLevel[] = "curve: CURVE_HILBERT depth: DEPTH_FIRST_LEVEL size: 8 tail: TAIL_BORROWS";
constexpr char kZ[] = "curve: CURVE_Z size: 8 tail: TAIL_SHORT";

std::string GroupsNode(const std::string& input, const std::string& parameters, const std::string& name = "order") {
  return absl::StrCat("nodes { name: \"", name, "\" inputs: \"", input, "\" groups { ", parameters, " } }\n");
}

std::string AttentionNode(const std::string& inputs, const std::string& groups_of = "order") {
  return absl::StrCat("nodes { name: \"attention\" inputs: [", inputs, "] attention { groups_of: \"", groups_of,
                      "\" } }\n");
}

// Adds groups of these parameters.
std::function<void(TestModel&)> Groups(const std::string& parameters, const std::string& input = "relu") {
  return Append(GroupsNode(input, parameters));
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, BrokenGroupsTest,
    ::testing::Values(
        BrokenModel{"NoCurve",
                    Groups("size: 8 tail: TAIL_SHORT"),
                    {"node \"order\": curve must be CURVE_Z, CURVE_Z_TRANSPOSED, CURVE_HILBERT or "
                     "CURVE_HILBERT_TRANSPOSED, without windows"}},
        BrokenModel{"UnknownCurve",
                    Groups("curve: 7 size: 8 tail: TAIL_SHORT"),
                    {"node \"order\": curve must be CURVE_Z, CURVE_Z_TRANSPOSED, CURVE_HILBERT or "
                     "CURVE_HILBERT_TRANSPOSED, without windows"}},
        BrokenModel{"NoTail",
                    Groups("curve: CURVE_Z size: 8"),
                    {"node \"order\": tail must be TAIL_BORROWS, TAIL_SHORT or TAIL_SPREAD"}},
        BrokenModel{"UnknownTail",
                    Groups("curve: CURVE_Z size: 8 tail: 4"),
                    {"node \"order\": tail must be TAIL_BORROWS, TAIL_SHORT or TAIL_SPREAD"}},
        BrokenModel{"NoDepth",
                    Groups("curve: CURVE_HILBERT_TRANSPOSED size: 8 tail: TAIL_SHORT"),
                    {"node \"order\": depth must be DEPTH_FIRST_LEVEL or DEPTH_OWN_LEVEL for a Hilbert curve"}},
        BrokenModel{"UnknownDepth",
                    Groups("curve: CURVE_Z depth: 3 size: 8 tail: TAIL_SHORT"),
                    {"node \"order\": depth must be DEPTH_FIRST_LEVEL or DEPTH_OWN_LEVEL"}},
        BrokenModel{
            "NoSize", Groups("curve: CURVE_Z tail: TAIL_SHORT"), {"node \"order\": size is 0; it must be 1 to 4096"}},
        BrokenModel{"SizeTooLarge",
                    Groups("curve: CURVE_Z size: 4097 tail: TAIL_SHORT"),
                    {"node \"order\": size is 4097; it must be 1 to 4096"}},
        BrokenModel{"SizeBeyondInt",
                    Groups("curve: CURVE_Z size: 4294967295 tail: TAIL_SHORT"),
                    {"node \"order\": size is 4294967295; it must be 1 to 4096"}},
        BrokenModel{"Everything",
                    Groups(""),
                    {"node \"order\": curve must be CURVE_Z, CURVE_Z_TRANSPOSED, CURVE_HILBERT or "
                     "CURVE_HILBERT_TRANSPOSED, without windows",
                     "node \"order\": tail must be TAIL_BORROWS, TAIL_SHORT or TAIL_SPREAD",
                     "node \"order\": size is 0; it must be 1 to 4096"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Windows, BrokenGroupsTest,
    ::testing::Values(
        BrokenModel{"SpreadWithoutWindows",
                    Groups("curve: CURVE_Z size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": tail is TAIL_SPREAD, which spreads groups over windows; it has none"}},
        BrokenModel{
            "WindowsAndACurve",
            Groups("curve: CURVE_Z windows { shape: [2, 2, 1] } size: 8 tail: TAIL_SPREAD"),
            {"node \"order\": has windows, and a curve or its depth; the order of the sites is one or the other"}},
        BrokenModel{
            "WindowsAndADepth",
            Groups("depth: DEPTH_OWN_LEVEL windows { shape: [2, 2, 1] } size: 8 tail: TAIL_SHORT"),
            {"node \"order\": has windows, and a curve or its depth; the order of the sites is one or the other"}},
        BrokenModel{"NoShape",
                    Groups("windows {} size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: shape has 0 values; it needs one for each of the 3 axes"}},
        BrokenModel{"TwoShapes",
                    Groups("windows { shape: [2, 2] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: shape has 2 values; it needs one for each of the 3 axes"}},
        BrokenModel{"ShapesOfWrongSizes",
                    Groups("windows { shape: [0, 4097, 4294967295] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: shape[0] is 0; it must be 1 to 4096",
                     "node \"order\": windows: shape[1] is 4097; it must be 1 to 4096",
                     "node \"order\": windows: shape[2] is 4294967295; it must be 1 to 4096"}},
        BrokenModel{"TwoShifts",
                    Groups("windows { shape: [2, 2, 1] shift: [1, 1] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: shift has 2 values; it needs one for each of the 3 axes, or none"}},
        BrokenModel{"ShiftsOfAWindow",
                    Groups("windows { shape: [2, 2, 1] shift: [1, 2, 4294967295] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: shift[1] is 2; it must be below the shape, 2",
                     "node \"order\": windows: shift[2] is 4294967295; it must be below the shape, 1"}},
        BrokenModel{"AxesTwice",
                    Groups("windows { shape: [2, 2, 1] axes: [AXIS_X, AXIS_Y, AXIS_X] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: axes must be AXIS_X, AXIS_Y and AXIS_Z, each once, in any order"}},
        BrokenModel{"TwoAxes",
                    Groups("windows { shape: [2, 2, 1] axes: [AXIS_X, AXIS_Y] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: axes must be AXIS_X, AXIS_Y and AXIS_Z, each once, in any order"}},
        BrokenModel{"UnknownAxes",
                    Groups("windows { shape: [2, 2, 1] axes: [1, 2, 9] } size: 8 tail: TAIL_SPREAD"),
                    {"node \"order\": windows: axes must be AXIS_X, AXIS_Y and AXIS_Z, each once, in any order"}},
        BrokenModel{"NoTailOfWindows",
                    Groups("windows { shape: [2, 2, 1] } size: 8"),
                    {"node \"order\": tail must be TAIL_BORROWS, TAIL_SHORT or TAIL_SPREAD"}},
        BrokenModel{"SizeOfWindows",
                    Groups("windows { shape: [2, 2, 1] } tail: TAIL_SPREAD"),
                    {"node \"order\": size is 0; it must be 1 to 4096"}},
        BrokenModel{"PlacesWithoutAShape",
                    Append("nodes { name: \"place\" inputs: \"relu\" site_coordinates { window_shift: [1, 1, 1] } }\n"),
                    {"node \"place\": window_shape has 0 values; it needs one for each of the 3 axes"}},
        BrokenModel{"PlacesOfWrongShapes",
                    Append("nodes { name: \"place\" inputs: \"relu\" site_coordinates { window_shape: [4, 0, 2] "
                           "window_shift: [4, 0, 1] } }\n"),
                    {"node \"place\": window_shift[0] is 4; it must be below the shape, 4",
                     "node \"place\": window_shape[1] is 0; it must be 1 to 4096"}}),
    CaseName);

// Replaces the origin, which is that of a range.
void SetOrigin(const std::string& origin, TestModel& model) {
  model.Replace("origin: ORIGIN_RANGE", absl::StrCat("origin: ", origin));
}

INSTANTIATE_TEST_SUITE_P(
    Sites, BrokenGroupsTest,
    ::testing::Values(
        BrokenModel{"NoInput",
                    Append(absl::StrCat("nodes { name: \"order\" groups { ", kZ, " } }")),
                    {"node \"order\": has 0 inputs; it needs 1"}},
        BrokenModel{"OfPoints",
                    Append(absl::StrCat("nodes { name: \"points\" inputs: \"voxels\" point_features {} }",
                                        GroupsNode("points", kZ))),
                    {"node \"order\": its input \"points\" has one row per point; it needs sites"}},
        BrokenModel{"OfSamples",
                    Append(absl::StrCat(kGlobal, GroupsNode("global", kZ))),
                    {"node \"order\": its input \"global\" has one row per sample; it needs sites"}},
        BrokenModel{"OfLabels",
                    Groups(kZ, "best"),
                    {"node \"order\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"OriginZero",
                    [](TestModel& model) {
                      SetOrigin("ORIGIN_ZERO", model);
                      Groups(kZ)(model);
                    },
                    {"node \"order\": needs coordinates of 0 or more; those of ORIGIN_ZERO can be below 0"}},
        BrokenModel{"OriginZeroOfWindows",
                    [](TestModel& model) {
                      SetOrigin("ORIGIN_ZERO", model);
                      Groups("windows { shape: [2, 2, 1] } size: 8 tail: TAIL_SPREAD")(model);
                    },
                    {"node \"order\": needs coordinates of 0 or more; those of ORIGIN_ZERO can be below 0"}},
        BrokenModel{"BelowZero",
                    [](TestModel& model) {
                      model.graph += absl::StrCat(
                          "nodes { name: \"grown\" inputs: \"relu\" sparse_conv { kind: KIND_GENERATIVE "
                          "kernel_size: [3, 3, 3] out_channels: 4 } }\n",
                          GroupsNode("grown", kHilbert));
                      model.weights["grown.weight"] = FilledTensor({27, 4, 4});
                    },
                    {"node \"order\": needs coordinates of 0 or more; those of \"grown\" can be below 0"}},
        BrokenModel{
            "FirstLevelOfThirds",
            [](TestModel& model) {
              model.graph += absl::StrCat(
                  "nodes { name: \"third\" inputs: \"relu\" pool { reduce: REDUCE_MAX kind: KIND_STRIDED "
                  "rule: RULE_FLOOR kernel_size: [3, 3, 3] stride: [3, 3, 3] } }\n",
                  GroupsNode("third", kFirstLevel));
            },
            {"node \"order\": DEPTH_FIRST_LEVEL needs sites that follow from the voxels by strides, with a unit "
             "that is a power of 2, the same on each axis; those of \"third\" do not"}},
        BrokenModel{
            "FirstLevelOfUnevenStrides",
            [](TestModel& model) {
              model.graph += absl::StrCat(
                  "nodes { name: \"flat\" inputs: \"relu\" pool { reduce: REDUCE_MAX kind: KIND_STRIDED "
                  "rule: RULE_FLOOR kernel_size: [2, 2, 1] stride: [2, 2, 1] } }\n",
                  GroupsNode("flat", kFirstLevel));
            },
            {"node \"order\": DEPTH_FIRST_LEVEL needs sites that follow from the voxels by strides, with a unit "
             "that is a power of 2, the same on each axis; those of \"flat\" do not"}},
        BrokenModel{
            "FirstLevelOfNewSites",
            [](TestModel& model) {
              model.graph += absl::StrCat(
                  "nodes { name: \"grown\" inputs: \"down\" sparse_conv { kind: KIND_GENERATIVE "
                  "kernel_size: [2, 2, 2] stride: [2, 2, 2] out_channels: 4 } }\n",
                  GroupsNode("grown", kFirstLevel));
              model.weights["grown.weight"] = FilledTensor({8, 3, 4});
            },
            {"node \"order\": DEPTH_FIRST_LEVEL needs sites that follow from the voxels by strides, with a unit "
             "that is a power of 2, the same on each axis; those of \"grown\" do not"}}),
    CaseName);

TEST(GroupsTest, NeedThreeAxes) {
  const TestModel model{.graph = absl::StrCat(R"(dimension: 2
nodes { name: "voxels" voxelize { voxel_size: [1, 1] rounding: ROUNDING_FLOOR origin: ORIGIN_MINIMUM
                                  reduce: REDUCE_FIRST features { name: "f" } } }
nodes { name: "order" inputs: "voxels" groups { )",
                                              kZ, R"( } }
nodes { name: "attention" inputs: ["voxels", "voxels", "voxels"] attention { groups_of: "order" } }
outputs { kind: KIND_TENSOR node: "attention" name: "rows" })")};
  const absl::StatusOr<Graph> graph = Load(model);
  EXPECT_THAT(ProblemsOf(graph.status()),
              ::testing::ElementsAre("node \"order\": needs sites of 3 axes; the network has 2"));
}

INSTANTIATE_TEST_SUITE_P(
    Names, BrokenGroupsTest,
    ::testing::Values(
        BrokenModel{"NobodyNamesThem", Groups(kZ), {"node \"order\": no output depends on it"}},
        BrokenModel{"NothingOfThisName",
                    Append(AttentionNode("\"relu\", \"relu\", \"relu\"")),
                    {"node \"attention\": groups_of \"order\" does not exist"}},
        BrokenModel{"NotGroups",
                    Append(AttentionNode("\"relu\", \"relu\", \"relu\"", "conv")),
                    {"node \"attention\": groups_of \"conv\" is not a groups"}},
        BrokenModel{"OfAnotherLevel",
                    Append(absl::StrCat(GroupsNode("down", kZ), AttentionNode("\"relu\", \"relu\", \"relu\""))),
                    {"node \"attention\": its input \"relu\" is not on the sites of groups_of \"order\""}},
        BrokenModel{"QueriesOfAnotherLevel",
                    [](TestModel& model) {
                      model.graph += absl::StrCat(
                          "nodes { name: \"wide\" inputs: \"down\" linear { out_channels: 4 } }\n",
                          GroupsNode("relu", kZ), AttentionNode("\"wide\", \"relu\", \"relu\""));
                      model.weights["wide.weight"] = FilledTensor({4, 3});
                    },
                    {"node \"attention\": its input \"wide\" is not on the sites of groups_of \"order\""}},
        BrokenModel{"QueriesOfSamples",
                    Append(absl::StrCat(kGlobal,
                                        GroupsNode("relu", kZ), AttentionNode("\"global\", \"relu\", \"relu\""))),
                    {"node \"attention\": its input \"global\" is not on the sites of groups_of \"order\""}},
        BrokenModel{"BrokenOnesAreReportedOnce",
                    Append(absl::StrCat(GroupsNode("relu", "curve: CURVE_Z tail: TAIL_SHORT"),
                                        AttentionNode("\"relu\", \"relu\", \"relu\""))),
                    {"node \"order\": size is 0; it must be 1 to 4096"}},
        BrokenModel{"AsAnInput",
                    Append(absl::StrCat(GroupsNode("relu", kZ),
                                        "nodes { name: \"next\" inputs: \"order\" argmax {} }")),
                    {"node \"next\": its input \"order\" is a groups, which has no features; only groups_of names "
                     "those"}},
        BrokenModel{"AsKeys",
                    Append(absl::StrCat(GroupsNode("relu", kZ), AttentionNode("\"relu\", \"order\", \"relu\""))),
                    {"node \"attention\": its input \"order\" is a groups, which has no features; only groups_of names "
                     "those"}},
        BrokenModel{"AsSites",
                    [](TestModel& model) {
                      model.graph += absl::StrCat(
                          GroupsNode("relu", kZ),
                          "nodes { name: \"next\" inputs: \"relu\" sparse_conv { kind: KIND_STRIDED "
                          "sites_of: \"order\" kernel_size: [1, 1, 3] out_channels: 4 } }");
                      model.weights["next.weight"] = FilledTensor({3, 4, 4});
                    },
                    {"node \"next\": names \"order\", which is a groups; only groups_of names those"}},
        BrokenModel{"AsATensor",
                    Append(absl::StrCat(GroupsNode("relu", kZ), AttentionNode("\"relu\", \"relu\", \"relu\""),
                                        "outputs { kind: KIND_TENSOR node: \"order\" name: \"order\" }")),
                    {"output \"order\": this node is a groups, which has no features"}},
        BrokenModel{"AsLabels",
                    [](TestModel& model) {
                      model.Replace("outputs { kind: KIND_LABELS node: \"labels\" }",
                                    "outputs { kind: KIND_LABELS node: \"order\" }");
                      Groups(kZ)(model);
                    },
                    {"output \"order\": this node is neither a voxel_to_point nor on points"}},
        BrokenModel{"Cycle",
                    Append(absl::StrCat(GroupsNode("attention", kZ), AttentionNode("\"relu\", \"relu\", \"relu\""))),
                    {"model.textproto: nodes form a cycle, each depending on the next: \"order\" -> \"attention\" -> "
                     "\"order\""}},
        BrokenModel{"WeightsOf",
                    Append(absl::StrCat(GroupsNode("relu", kZ),
                                        "nodes { name: \"other\" inputs: \"relu\" weights_of: \"order\" groups { ", kZ,
                                        " } }")),
                    {"node \"other\": has weights_of, and reads no tensors"}}),
    CaseName);

// Loads a model with groups of `input`'s sites, and attention within them.
absl::StatusOr<Graph> LoadWith(const std::string& others, const std::string& input, const std::string& parameters,
                               const std::string& origin = "ORIGIN_RANGE") {
  TestModel model = support::SmallModel();
  if (origin != "ORIGIN_RANGE") {
    model.Replace("origin: ORIGIN_RANGE", absl::StrCat("origin: ", origin));
  }
  // The attention stands before the groups that it names.
  model.graph +=
      absl::StrCat(others, AttentionNode(absl::StrCat("\"", input, "\", \"", input, "\", \"", input, "\"")),
                   GroupsNode(input, parameters), "outputs { kind: KIND_TENSOR node: \"attention\" name: \"rows\" }");
  return Load(model);
}

const GroupsOp& GroupsIn(const Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    if (const auto* const groups = std::get_if<GroupsOp>(&node.op)) return *groups;
  }
  static const GroupsOp kNone;
  return kNone;
}

TEST(GroupsTest, OrdersFollowFromTheLevels) {
  for (const char* const origin : {"ORIGIN_RANGE", "ORIGIN_MINIMUM"}) {
    const absl::StatusOr<Graph> graph = LoadWith("", "down", kFirstLevel, origin);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const GroupsOp& groups = GroupsIn(*graph);
    EXPECT_EQ(groups.order, (SiteOrderSpec{1, kernels::Curve::kHilbert, 0, 1}));
    EXPECT_EQ(groups.size, 8);
    EXPECT_EQ(groups.tail, kernels::GroupTail::kBorrows);
  }
  const absl::StatusOr<Graph> own = LoadWith("", "down", kHilbert);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(GroupsIn(*own).order, (SiteOrderSpec{1, kernels::Curve::kHilbert, 1, 0}));
  const absl::StatusOr<Graph> z = LoadWith("", "down", absl::StrCat("depth: DEPTH_FIRST_LEVEL ", kZ));
  ASSERT_TRUE(z.ok()) << z.status();
  EXPECT_EQ(GroupsIn(*z).order, (SiteOrderSpec{1, kernels::Curve::kZ, -1, 0}));
  EXPECT_EQ(GroupsIn(*z).tail, kernels::GroupTail::kShort);
}

TEST(GroupsTest, WindowsAreRead) {
  const absl::StatusOr<Graph> spread = LoadWith(
      "", "down", "windows { shape: [12, 13, 1] shift: [6, 0, 0] axes: [2, 1, 3] } size: 36 tail: TAIL_SPREAD");
  ASSERT_TRUE(spread.ok()) << spread.status();
  const kernels::SiteWindows windows = {.shape = {12, 13, 1, 1}, .shift = {6, 0, 0, 0}, .axes = {1, 0, 2, 3}};
  EXPECT_EQ(GroupsIn(*spread).order, (SiteOrderSpec{.level = 1, .windows = windows, .spread_size = 36}));
  EXPECT_EQ(GroupsIn(*spread).tail, kernels::GroupTail::kSpread);
  const absl::StatusOr<Graph> snake =
      LoadWith("", "down", "windows { shape: [13, 13, 1] snake: true } size: 144 tail: TAIL_BORROWS");
  ASSERT_TRUE(snake.ok()) << snake.status();
  EXPECT_EQ(GroupsIn(*snake).order,
            (SiteOrderSpec{.level = 1, .windows = kernels::SiteWindows{.shape = {13, 13, 1, 1}, .is_snake = true}}));
  EXPECT_EQ(GroupsIn(*snake).size, 144);
  // No window has more sites than its volume.
  const absl::StatusOr<Graph> large = LoadWith("", "down", "windows { shape: [3, 2, 1] } size: 4096 tail: TAIL_SPREAD");
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(GroupsIn(*large).size, 6);
  EXPECT_EQ(GroupsIn(*large).order.spread_size, 6);
}

TEST(GroupsTest, CropsKeepTheDepthOfTheVoxels) {
  const absl::StatusOr<Graph> graph =
      LoadWith("nodes { name: \"part\" inputs: \"down\" crop { lower_bound: [-9, 2, 0] } }\n", "part", kFirstLevel);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(GroupsIn(*graph).order, (SiteOrderSpec{2, kernels::Curve::kHilbert, 0, 1}));
}

}  // namespace
}  // namespace voxserve::broken_groups_test
