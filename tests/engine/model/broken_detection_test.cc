// Tests the error messages for networks with broken detection heads.

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_detection_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenDetectionTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenDetectionTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// Nodes that make images with different numbers of channels: "small" has 16 x 16 cells, the others have 32 x 32.
constexpr char kImages[] = R"(
nodes { name: "bev" inputs: "relu" to_bev {} }
nodes { name: "small" inputs: "bev" conv2d { out_channels: 3 kernel_size: 2 stride: 2 } }
nodes { name: "one" inputs: "bev" linear { out_channels: 1 } }
nodes { name: "two" inputs: "bev" linear { out_channels: 2 } }
nodes { name: "three" inputs: "bev" linear { out_channels: 3 } }
nodes { name: "four" inputs: "bev" linear { out_channels: 4 } }
nodes { name: "many" inputs: "bev" linear { out_channels: 21 } }
)";
constexpr char kCenterHead[] = R"(
nodes { name: "boxes" inputs: ["two", "two", "one", "three", "two", "two"] center_head_decode {
  convention: CONVENTION_DET3D
  class_ids: [2, 0]
  stride: 1
  score_threshold: 0.1
  max_boxes: 10
  center_min: [-9, -9, -5]
  center_max: [9, 9, 5]
  has_velocity: true
} }
)";
constexpr char kAnchorHead[] = R"(
nodes { name: "boxes" inputs: ["three", "many", "three"] anchor_head_decode {
  anchors { class_id: 1 size: [3.9, 1.6, 1.56] bottom: -1.78 rotations: [0, 1.57, 3] }
  num_direction_bins: 1
  direction_offset: 0.78539
  score_threshold: 0.1
  max_boxes: 10
} }
)";
constexpr char kNms[] = R"(
nodes { name: "kept" inputs: ["boxes"] nms { iou_threshold: 0.2 max_boxes_in: 100 max_boxes_out: 5 } }
outputs { kind: KIND_BOXES node: "kept" }
)";

void AddImages(TestModel& model) {
  model.weights["small.weight"] = FilledTensor({3, 32, 2, 2});
  for (const auto& [name, channels] :
       {std::pair("one", 1), std::pair("two", 2), std::pair("three", 3), std::pair("four", 4), std::pair("many", 21)}) {
    model.weights[absl::StrCat(name, ".weight")] = FilledTensor({channels, 32});
  }
}

std::function<void(TestModel&)> WithHead(const std::string& head, const std::string& from, const std::string& to) {
  return [=](TestModel& model) {
    model.graph += kImages + head + kNms;
    AddImages(model);
    if (!from.empty()) model.Replace(from, to);
  };
}
std::function<void(TestModel&)> Center(const std::string& from, const std::string& to) {
  return WithHead(kCenterHead, from, to);
}
std::function<void(TestModel&)> Anchors(const std::string& from, const std::string& to) {
  return WithHead(kAnchorHead, from, to);
}

// Returns the problems of a network whose head reads only the images `read`: one problem for each image that is not
// read.
std::vector<std::string> IdleBut(const std::vector<std::string>& read) {
  std::vector<std::string> problems;
  for (const std::string name : {"small", "one", "two", "three", "four", "many"}) {
    if (std::find(read.begin(), read.end(), name) == read.end()) {
      problems.push_back(absl::StrCat("node \"", name, "\": no output depends on it"));
    }
  }
  return problems;
}

INSTANTIATE_TEST_SUITE_P(
    Whole, BrokenDetectionTest,
    ::testing::Values(BrokenModel{"CenterHead", Center("", ""), IdleBut({"one", "two", "three"})},
                      BrokenModel{"CenterHeadWithoutBounds",
                                  Center("  center_min: [-9, -9, -5]\n  center_max: [9, 9, 5]\n", ""),
                                  IdleBut({"one", "two", "three"})},
                      BrokenModel{"AnchorHead", Anchors("", ""), IdleBut({"three", "many"})},
                      BrokenModel{"ClassesOfBoxesAndLabels",
                                  Center("class_ids: [2, 0]", "class_ids: [2, 3]"),
                                  {"model.textproto: its boxes have class id 3 (node \"kept\"), its labels 3 classes"}},
                      BrokenModel{"OutputOfUnsuppressedBoxes",
                                  Center("node: \"kept\"", "node: \"boxes\""),
                                  {"output \"boxes\": this node is neither an nms nor a query_decode"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Center, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{"NoConvention",
                    Center("convention: CONVENTION_DET3D", ""),
                    {"node \"boxes\": convention must be CONVENTION_OPENPCDET or CONVENTION_DET3D"}},
        BrokenModel{
            "NoClasses", Center("class_ids: [2, 0]", ""), {"node \"boxes\": has 0 class_ids; it must have 1 to 32"}},
        BrokenModel{"ManyClasses",
                    Center("[2, 0]",
                           "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, "
                           "25, 26, 27, 28, 29, 30, 31, 32]"),
                    {"node \"boxes\": has 33 class_ids; it must have 1 to 32"}},
        BrokenModel{"ClassTwice", Center("[2, 0]", "[2, 2]"), {"node \"boxes\": class id 2 appears twice"}},
        BrokenModel{"ClassTooLarge",
                    Center("[2, 0]", "[65535, 0]"),
                    {"node \"boxes\": class id 65535 is too large; ids are below 65535"}},
        BrokenModel{"NoStride", Center("stride: 1\n", ""), {"node \"boxes\": stride is 0; it must be 1 to 1024"}},
        BrokenModel{"StrideOfOtherImages",
                    Center("stride: 1\n", "stride: 3\n"),
                    {"node \"boxes\": its images have 32 x 32 cells; 32 x 32 voxels (y, x) at a stride of 3 are 11 x "
                     "11"}},
        BrokenModel{"ThresholdOfOne",
                    Center("score_threshold: 0.1", "score_threshold: 1"),
                    {"node \"boxes\": score_threshold is 1; it must be at least 0 and below 1"}},
        BrokenModel{"ThresholdBelowZero",
                    Center("score_threshold: 0.1", "score_threshold: -0.5"),
                    {"node \"boxes\": score_threshold is -0.5; it must be at least 0 and below 1"}},
        BrokenModel{"ThresholdNan",
                    Center("score_threshold: 0.1", "score_threshold: nan"),
                    {"node \"boxes\": score_threshold is nan; it must be at least 0 and below 1"}},
        BrokenModel{"NoBoxes", Center("max_boxes: 10", ""), {"node \"boxes\": max_boxes is 0; it must be 1 to 4096"}},
        BrokenModel{"ManyBoxes",
                    Center("max_boxes: 10", "max_boxes: 4097"),
                    {"node \"boxes\": max_boxes is 4097; it must be 1 to 4096"}},
        BrokenModel{"BoundOfTwo",
                    Center("center_min: [-9, -9, -5]", "center_min: [-9, -9]"),
                    {"node \"boxes\": center_min has 2 values; it needs 3, or none"}},
        BrokenModel{"BoundOfInfinity",
                    Center("center_max: [9, 9, 5]", "center_max: [9, 9, inf]"),
                    {"node \"boxes\": center_max is inf; it must be finite"}},
        BrokenModel{"NothingWithin",
                    Center("center_max: [9, 9, 5]", "center_max: [9, -10, 5]"),
                    {"node \"boxes\": center_min[1] is -9 and center_max[1] -10; no centre is within"}},
        BrokenModel{"ManyProblems",
                    Center("  stride: 1\n  score_threshold: 0.1\n  max_boxes: 10", ""),
                    {"node \"boxes\": stride is 0; it must be 1 to 1024",
                     "node \"boxes\": max_boxes is 0; it must be 1 to 4096"}}),
    CaseName);

// Replaces the inputs of the head.
std::function<void(TestModel&)> Inputs(const std::string& inputs) {
  return Center(R"(["two", "two", "one", "three", "two", "two"])", inputs);
}

INSTANTIATE_TEST_SUITE_P(
    CenterImages, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{
            "Four", Inputs(R"(["two", "two", "one", "three"])"), {"node \"boxes\": has 4 inputs; it needs 5 to 7"}},
        BrokenModel{"NoVelocities",
                    Inputs(R"(["two", "two", "one", "three", "two"])"),
                    {"node \"boxes\": has 5 inputs; with has_velocity it needs 6"}},
        BrokenModel{"VelocitiesUnsaid",
                    Center("has_velocity: true", ""),
                    {"node \"boxes\": has 6 inputs; without has_velocity it needs 5"}},
        BrokenModel{"HeatmapOfOtherClasses",
                    Inputs(R"(["three", "two", "one", "three", "two", "two"])"),
                    {"node \"boxes\": its heatmap \"three\" has 3 channels; it needs 2"}},
        BrokenModel{"OtherChannels",
                    Inputs(R"(["two", "one", "two", "two", "three", "four"])"),
                    {"node \"boxes\": its center \"one\" has 1 channels; it needs 2",
                     "node \"boxes\": its height \"two\" has 2 channels; it needs 1",
                     "node \"boxes\": its dim \"two\" has 2 channels; it needs 3",
                     "node \"boxes\": its rot \"three\" has 3 channels; it needs 2",
                     "node \"boxes\": its vel \"four\" has 4 channels; it needs 2"}},
        BrokenModel{"OtherSize",
                    Inputs(R"(["two", "two", "one", "small", "two", "two"])"),
                    {"node \"boxes\": its heatmap \"two\" has 32 x 32 cells, its dim \"small\" 16 x 16"}},
        BrokenModel{"Sites",
                    Inputs(R"(["two", "two", "one", "three", "two", "relu"])"),
                    {"node \"boxes\": its vel \"relu\" has one row per site; it must be an image, or have sites of 3 "
                     "axes with a spatial shape of one cell on z"}},
        BrokenModel{"Labels",
                    Inputs(R"(["best", "two", "one", "three", "two", "two"])"),
                    {"node \"boxes\": its input \"best\" computes labels; only voxel_to_point reads those"}},
        BrokenModel{"Boxes",
                    [](TestModel& model) {
                      Center("", "")(model);
                      model.graph += "nodes { name: \"next\" inputs: \"kept\" activation { function: FUNCTION_RELU } }";
                    },
                    {"node \"next\": its input \"kept\" computes boxes; only nms and outputs read those"}}),
    CaseName);

// Adds a head that reads rows of sites (not images): the nodes `inputs`.
std::function<void(TestModel&)> OnSites(const std::string& inputs, const std::string& stride = "1") {
  return [=](TestModel& model) {
    model.graph += R"(
nodes { name: "flat" inputs: "relu" pool { reduce: REDUCE_SUM kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [1, 1, 8]
                                           stride: [1, 1, 8] } }
nodes { name: "coarse" inputs: "flat" pool { reduce: REDUCE_SUM kind: KIND_STRIDED rule: RULE_FLOOR
                                             kernel_size: [2, 2, 1] stride: [2, 2, 1] } }
nodes { name: "part" inputs: "flat" crop { upper_bound: [16, 16, 1] } }
nodes { name: "far" inputs: "flat" sparse_conv { kind: KIND_GENERATIVE kernel_size: [2, 1, 1] stride: [1, 1, 1]
                                                 out_channels: 2 } }
nodes { name: "bev" inputs: "flat" to_bev {} }
nodes { name: "image" inputs: "bev" linear { out_channels: 2 } }
nodes { name: "one" inputs: "flat" linear { out_channels: 1 } }
nodes { name: "two" inputs: "flat" linear { out_channels: 2 } }
nodes { name: "three" inputs: "flat" linear { out_channels: 3 } }
nodes { name: "two_of_coarse" inputs: "coarse" linear { out_channels: 2 } }
nodes { name: "two_of_part" inputs: "part" linear { out_channels: 2 } }
nodes { name: "two_of_tall" inputs: "relu" linear { out_channels: 2 } }
)";
    model.graph += absl::StrCat(kCenterHead, kNms);
    model.Replace(R"(["two", "two", "one", "three", "two", "two"])", inputs);
    model.Replace("stride: 1\n", absl::StrCat("stride: ", stride, "\n"));
    model.weights["far.weight"] = FilledTensor({2, 4, 2});
    for (const auto& [name, channels] :
         {std::pair("image", 2), std::pair("one", 1), std::pair("two", 2), std::pair("three", 3),
          std::pair("two_of_coarse", 2), std::pair("two_of_part", 2), std::pair("two_of_tall", 2)}) {
      model.weights[absl::StrCat(name, ".weight")] = FilledTensor({channels, 4});
    }
  };
}

constexpr char kNeedsSites[] = "; it must be an image, or have sites of 3 axes with a spatial shape of one cell on z";

INSTANTIATE_TEST_SUITE_P(
    CenterSites, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{"OtherSites",
                    OnSites(R"(["two", "two", "one", "three", "two", "two_of_part"])"),
                    {"node \"boxes\": its heatmap \"two\" and its vel \"two_of_part\" have different rows"}},
        BrokenModel{"CoarserSites",
                    OnSites(R"(["two", "two", "one", "three", "two", "two_of_coarse"])"),
                    {"node \"boxes\": its heatmap \"two\" has 32 x 32 cells, its vel \"two_of_coarse\" 16 x 16"}},
        BrokenModel{"AnImageAmongSites",
                    OnSites(R"(["two", "image", "one", "three", "two", "two"])"),
                    {"node \"boxes\": its heatmap \"two\" and its center \"image\" have different rows"}},
        BrokenModel{"SitesWithHeights",
                    OnSites(R"(["two_of_tall", "two", "one", "three", "two", "two"])"),
                    {absl::StrCat("node \"boxes\": its heatmap \"two_of_tall\" has one row per site", kNeedsSites)}},
        BrokenModel{"SitesWithoutShape",
                    OnSites(R"(["far", "two", "one", "three", "two", "two"])"),
                    {absl::StrCat("node \"boxes\": its heatmap \"far\" has one row per site", kNeedsSites)}},
        BrokenModel{"SitesOfAnotherStride",
                    OnSites(R"(["two", "two", "one", "three", "two", "two"])", "2"),
                    {"node \"boxes\": its images have 32 x 32 cells; 32 x 32 voxels (y, x) at a stride of 2 are 16 x "
                     "16"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Anchors, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{
            "NoAnchors",
            Anchors("  anchors { class_id: 1 size: [3.9, 1.6, 1.56] bottom: -1.78 rotations: [0, 1.57, 3] }", ""),
            {"node \"boxes\": has 0 anchors; it must have 1 to 32"}},
        BrokenModel{"ClassTwice",
                    Anchors("num_direction_bins: 1",
                            "num_direction_bins: 1 anchors { class_id: 1 size: [1, 1, 1] rotations: [0] }"),
                    {"node \"boxes\": class id 1 appears twice"}},
        BrokenModel{"SizeOfTwo",
                    Anchors("size: [3.9, 1.6, 1.56]", "size: [3.9, 1.6]"),
                    {"node \"boxes\": anchors[0].size has 2 values; it needs length, width and height"}},
        BrokenModel{"SizeOfZero",
                    Anchors("size: [3.9, 1.6, 1.56]", "size: [3.9, 0, 1.56]"),
                    {"node \"boxes\": anchors[0].size[1] is 0; it must be finite and above 0"}},
        BrokenModel{"BottomOfInfinity",
                    Anchors("bottom: -1.78", "bottom: -inf"),
                    {"node \"boxes\": anchors[0].bottom is -inf; it must be finite"}},
        BrokenModel{
            "NoRotations", Anchors("rotations: [0, 1.57, 3]", ""), {"node \"boxes\": anchors[0] has no rotations"}},
        BrokenModel{"RotationNan",
                    Anchors("rotations: [0, 1.57, 3]", "rotations: [0, nan, 3]"),
                    {"node \"boxes\": anchors[0].rotations is nan; it must be finite"}},
        BrokenModel{"ManyRotations",
                    Anchors("rotations: [0, 1.57, 3]",
                            "rotations: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
                            "0, 0, 0, 0, 0, 0, 0]"),
                    {"node \"boxes\": has 33 anchors per cell, rotations counted; at most 32 are possible"}},
        BrokenModel{"NoBins",
                    Anchors("num_direction_bins: 1", ""),
                    {"node \"boxes\": num_direction_bins is 0; it must be 1 to 16"}},
        BrokenModel{"ManyBins",
                    Anchors("num_direction_bins: 1", "num_direction_bins: 17"),
                    {"node \"boxes\": num_direction_bins is 17; it must be 1 to 16"}},
        BrokenModel{"OffsetNan",
                    Anchors("direction_offset: 0.78539", "direction_offset: nan"),
                    {"node \"boxes\": direction_offset is nan; it must be finite"}},
        BrokenModel{"LimitOffsetOfInfinity",
                    Anchors("direction_offset: 0.78539", "direction_limit_offset: inf"),
                    {"node \"boxes\": direction_limit_offset is inf; it must be finite"}},
        BrokenModel{"ThresholdAboveOne",
                    Anchors("score_threshold: 0.1", "score_threshold: 1.5"),
                    {"node \"boxes\": score_threshold is 1.5; it must be at least 0 and at most 1"}},
        BrokenModel{"NoBoxes", Anchors("max_boxes: 10", ""), {"node \"boxes\": max_boxes is 0; it must be 1 to 4096"}},
        BrokenModel{"TwoInputs",
                    Anchors(R"(["three", "many", "three"])", R"(["three", "many"])"),
                    {"node \"boxes\": has 2 inputs; it needs 3"}},
        BrokenModel{"OtherChannels",
                    Anchors(R"(["three", "many", "three"])", R"(["two", "three", "four"])"),
                    {"node \"boxes\": its scores \"two\" has 2 channels; it needs 3",
                     "node \"boxes\": its boxes \"three\" has 3 channels; it needs 21",
                     "node \"boxes\": its directions \"four\" has 4 channels; it needs 3"}},
        BrokenModel{"OtherSize",
                    Anchors(R"(["three", "many", "three"])", R"(["small", "many", "three"])"),
                    {"node \"boxes\": its scores \"small\" has 16 x 16 cells, its boxes \"many\" 32 x 32",
                     "node \"boxes\": its scores \"small\" has 16 x 16 cells, its directions \"three\" 32 x 32"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Ious, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{"OfDet3d",
                    Center("has_velocity: true", "iou_powers: [0.5, 0.5]"),
                    {"node \"boxes\": has iou_powers, which only CONVENTION_OPENPCDET has",
                     "node \"boxes\": its iou \"two\" has 2 channels; it needs 1"}},
        BrokenModel{"OnePower",
                    Center("convention: CONVENTION_DET3D", "convention: CONVENTION_OPENPCDET iou_powers: [0.5]"),
                    {"node \"boxes\": iou_powers has 1 values; it needs one for each of the 2 classes, or none",
                     "node \"boxes\": has 6 inputs; with has_velocity and with iou_powers it needs 7"}},
        BrokenModel{"PowersOfWrongSizes",
                    Center("convention: CONVENTION_DET3D", "convention: CONVENTION_OPENPCDET iou_powers: [-0.5, nan]"),
                    {"node \"boxes\": iou_powers[0] is -0.5; it must be 0 to 1",
                     "node \"boxes\": iou_powers[1] is nan; it must be 0 to 1",
                     "node \"boxes\": has 6 inputs; with has_velocity and with iou_powers it needs 7"}},
        BrokenModel{"IouOfTwoChannels",
                    [](TestModel& model) {
                      Center("has_velocity: true", "iou_powers: [0.5, 1]")(model);
                      model.Replace("CONVENTION_DET3D", "CONVENTION_OPENPCDET");
                    },
                    {"node \"boxes\": its iou \"two\" has 2 channels; it needs 1"}}),
    CaseName);

constexpr char kLimits[] = "iou_threshold: 0.2 max_boxes_in: 100 max_boxes_out: 5";

INSTANTIATE_TEST_SUITE_P(
    NmsClasses, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{"AndLimits",
                    Center(kLimits, "iou_threshold: 0.2 classes { class_id: 2 max_boxes_out: 5 }"),
                    {"node \"kept\": has classes, whose own iou_threshold, max_boxes_in and max_boxes_out count; leave "
                     "these out"}},
        BrokenModel{"ThresholdNan",
                    Center(kLimits, "classes { class_id: 2 iou_threshold: nan max_boxes_out: 5 }"),
                    {"node \"kept\": class 2: iou_threshold is nan; it must be 0 to 1"}},
        BrokenModel{"NoneOut",
                    Center(kLimits, "classes { class_id: 2 max_boxes_in: 4097 }"),
                    {"node \"kept\": class 2: max_boxes_in is 4097; it must be 0 to 4096",
                     "node \"kept\": class 2: max_boxes_out is 0; it must be 1 to 4096"}},
        BrokenModel{
            "Twice",
            Center(kLimits, "classes { class_id: 2 max_boxes_out: 5 } classes { class_id: 2 max_boxes_out: 5 }"),
            {"node \"kept\": class id 2 appears twice"}},
        BrokenModel{
            "OfNoInput",
            Center(kLimits, "classes { class_id: 2 max_boxes_out: 5 } classes { class_id: 77 max_boxes_out: 5 }"),
            {"node \"kept\": has class id 77, of which no input finds boxes"}},
        BrokenModel{"TooLarge",
                    Center(kLimits, "classes { class_id: 4294967295 max_boxes_out: 5 }"),
                    {absl::StrCat("node \"kept\": class id 4294967295 is too large; ids are below ", kMaxClasses)}},
        BrokenModel{"TooMany",
                    [](TestModel& model) {
                      std::string classes;
                      for (int k = 0; k < 17; ++k) {
                        absl::StrAppend(&classes, " classes { class_id: ", k, " max_boxes_out: 5 }");
                      }
                      Center(kLimits, classes)(model);
                    },
                    {"node \"kept\": has 17 classes of 1 inputs; at most 16 pairs of these are possible"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Nms, BrokenDetectionTest,
    ::testing::Values(
        BrokenModel{"NoInput", Center("inputs: [\"boxes\"]", ""), {"node \"kept\": has 0 inputs; it needs 1 to 16"}},
        BrokenModel{"ThresholdAboveOne",
                    Center("iou_threshold: 0.2", "iou_threshold: 1.25"),
                    {"node \"kept\": iou_threshold is 1.25; it must be 0 to 1"}},
        BrokenModel{"ThresholdNan",
                    Center("iou_threshold: 0.2", "iou_threshold: nan"),
                    {"node \"kept\": iou_threshold is nan; it must be 0 to 1"}},
        BrokenModel{"ManyIn",
                    Center("max_boxes_in: 100", "max_boxes_in: 4097"),
                    {"node \"kept\": max_boxes_in is 4097; it must be 0 to 4096"}},
        BrokenModel{
            "NoneOut", Center("max_boxes_out: 5", ""), {"node \"kept\": max_boxes_out is 0; it must be 1 to 4096"}},
        BrokenModel{
            "OfAnImage",
            Center("inputs: [\"boxes\"]", "inputs: [\"boxes\", \"two\"]"),
            {"node \"kept\": its input \"two\" is not a center_head_decode, anchor_head_decode or query_decode"}},
        BrokenModel{
            "OfAnNms",
            [](TestModel& model) {
              Center("", "")(model);
              model.graph += "nodes { name: \"again\" inputs: \"kept\" nms { max_boxes_out: 5 } }";
            },
            {"node \"again\": its input \"kept\" is not a center_head_decode, anchor_head_decode or query_decode"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(Voxelize, BrokenDetectionTest,
                         ::testing::Values(BrokenModel{
                             "OtherAxes",
                             [](TestModel& model) {
                               Center("", "")(model);
                               model.Replace("    features { name: \"x\"",
                                             "    axes: [\"y\", \"x\", \"z\"]\n    features { name: \"x\"");
                             },
                             {"node \"boxes\": needs axes that begin with x, y and z; they are y, x, z"}}),
                         CaseName);

}  // namespace
}  // namespace voxserve::broken_detection_test
