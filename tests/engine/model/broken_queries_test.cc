// Tests the error messages for networks with broken queries: select, gather, constant and query_decode.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/broken_model.h"

namespace voxserve::broken_queries_test {
namespace {

using support::FilledTensor;
using support::TestModel;

class BrokenQueriesTest : public ::testing::TestWithParam<BrokenModel> {};

TEST_P(BrokenQueriesTest, IsToldExactly) { ExpectToldExactly(GetParam()); }

// A head on images of 32 x 32 cells, with the three classes of the model's labels.
constexpr char kHead[] = R"(
nodes { name: "bev" inputs: "relu" to_bev {} }
nodes { name: "logits" inputs: "bev" linear { out_channels: 3 } }
nodes { name: "picked" inputs: "logits" select { k: 5 peak_kernel: 3 border: BORDER_DROP
                                                 classes_without_peak_test: [2] } }
nodes { name: "cells" inputs: ["bev", "picked"] gather { of: OF_FEATURES } }
nodes { name: "heatmap" inputs: "cells" linear { out_channels: 3 } }
nodes { name: "center" inputs: "cells" linear { out_channels: 2 } }
nodes { name: "height" inputs: "cells" linear { out_channels: 1 } }
nodes { name: "dim" inputs: "cells" linear { out_channels: 3 } }
nodes { name: "rot" inputs: "cells" linear { out_channels: 2 } }
nodes { name: "vel" inputs: "cells" linear { out_channels: 2 } }
nodes { name: "boxes" inputs: ["picked", "heatmap", "center", "height", "dim", "rot", "vel"] query_decode {
  class_ids: [2, 0, 1]
  stride: 1
  score_thresholds: [0.1]
  max_boxes: 4
  center_min: [-9, -9, -5]
  center_max: [9, 9, 5]
  has_velocity: true
  height_of: HEIGHT_CENTER
} }
outputs { kind: KIND_BOXES node: "boxes" }
)";

void AddHead(TestModel& model) {
  model.graph += kHead;
  for (const auto& [name, channels] :
       {std::pair("logits", 3), std::pair("heatmap", 3), std::pair("center", 2), std::pair("height", 1),
        std::pair("dim", 3), std::pair("rot", 2), std::pair("vel", 2)}) {
    model.weights[absl::StrCat(name, ".weight")] = FilledTensor({channels, 32});
  }
}

// Returns a change that adds the head, replaces text of it, and appends text.
std::function<void(TestModel&)> Head(const std::string& from, const std::string& to, const std::string& more = "") {
  return [=](TestModel& model) {
    AddHead(model);
    model.Replace(from, to);
    model.graph += more;
  };
}
std::function<void(TestModel&)> More(const std::string& text) {
  return [=](TestModel& model) {
    AddHead(model);
    model.graph += text;
  };
}

TEST(QueriesTest, TheUnbrokenModelLoads) {
  TestModel model = support::SmallModel();
  AddHead(model);
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(graph->has_velocities);
  EXPECT_EQ(graph->num_classes, 3);
  const GraphNode& boxes = graph->nodes[static_cast<size_t>(graph->boxes_output)];
  EXPECT_EQ(boxes.max_boxes, 4);
  const auto& head = std::get<QueryDecodeOp>(boxes.op).head;
  EXPECT_EQ(head.k, 5);
  EXPECT_EQ(head.score_thresholds[2], 0.1f);
  EXPECT_EQ(head.min_rot_lengths[2], 0.0f);
  const GraphNode& select = graph->nodes[static_cast<size_t>(boxes.inputs[0])];
  EXPECT_TRUE(select.is_selection);
  EXPECT_EQ(select.rows_per_sample(), 5);
}

// Every box of such a model is of one query, so its select needs no window; and an nms may read the boxes.
TEST(QueriesTest, OneQueryAndAnNmsLoad) {
  TestModel model = support::SmallModel();
  AddHead(model);
  model.Replace("k: 5 peak_kernel: 3 border: BORDER_DROP", "k: 1 peak_kernel: 1")
      .Replace("max_boxes: 4", "max_boxes: 1");
  model.Replace("node: \"boxes\" }", "node: \"kept\" }");
  model.graph += "nodes { name: \"kept\" inputs: \"boxes\" nms { iou_threshold: 1 max_boxes_out: 5 } }";
  const absl::StatusOr<Graph> graph = Load(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes[static_cast<size_t>(graph->boxes_output)].max_boxes, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Select, BrokenQueriesTest,
    ::testing::Values(
        BrokenModel{"NoQueries", Head("k: 5", ""), {"node \"picked\": k is 0; it must be 1 to 1024"}},
        BrokenModel{"TooManyQueries", Head("k: 5", "k: 1025"), {"node \"picked\": k is 1025; it must be 1 to 1024"}},
        BrokenModel{"MoreQueriesThanPairs",
                    Head("inputs: \"logits\" select { k: 5", "inputs: \"tiny\" select { k: 13",
                         "nodes { name: \"tiny\" inputs: \"logits\" max_pool2d { kernel_size: 15 } }"),
                    {"node \"picked\": k is 13, and its input \"tiny\" has 3 classes in 2 x 2 cells"}},
        BrokenModel{
            "NoKernel", Head("peak_kernel: 3", ""), {"node \"picked\": peak_kernel is 0; it must be odd and 1 to 15"}},
        BrokenModel{"EvenKernel",
                    Head("peak_kernel: 3", "peak_kernel: 2"),
                    {"node \"picked\": peak_kernel is 2; it must be odd and 1 to 15"}},
        BrokenModel{"LargeKernel",
                    Head("peak_kernel: 3", "peak_kernel: 17"),
                    {"node \"picked\": peak_kernel is 17; it must be odd and 1 to 15"}},
        BrokenModel{"NoBorder",
                    Head("border: BORDER_DROP", ""),
                    {"node \"picked\": border must be BORDER_DROP, BORDER_KEEP or BORDER_PAD"}},
        BrokenModel{"ClassWithoutTestBeyondTheClasses",
                    Head("classes_without_peak_test: [2]", "classes_without_peak_test: [3]"),
                    {"node \"picked\": classes_without_peak_test has 3; its input \"logits\" has 3 channels"}},
        BrokenModel{"ClassWithoutTestTwice",
                    Head("classes_without_peak_test: [2]", "classes_without_peak_test: [1, 1]"),
                    {"node \"picked\": classes_without_peak_test has 1 twice"}},
        BrokenModel{"OfSites",
                    Head("inputs: \"logits\" select", "inputs: \"relu\" select"),
                    {"node \"picked\": its input \"relu\" has one row per site; it needs an image"}},
        BrokenModel{"OfADenseGrid",
                    Head("inputs: \"logits\" select", "inputs: \"dense\" select",
                         "nodes { name: \"dense\" inputs: \"relu\" to_dense {} }"),
                    {"node \"picked\": its input \"dense\" has cells of 3 axes; it needs an image"}},
        BrokenModel{"TooManyClasses",
                    [](TestModel& model) {
                      Head("\"logits\" inputs: \"bev\" linear { out_channels: 3 }",
                           "\"logits\" inputs: \"bev\" linear { out_channels: 33 }")(model);
                      model.weights["logits.weight"] = FilledTensor({33, 32});
                    },
                    {"node \"picked\": its input \"logits\" has 33 channels; at most 32 classes are possible"}},
        BrokenModel{"ReadAsFeatures",
                    More("nodes { name: \"next\" inputs: \"picked\" activation { function: FUNCTION_RELU } }"),
                    {"node \"next\": its input \"picked\" selects queries; only gather and query_decode read those"}},
        BrokenModel{"AsATensor",
                    More("outputs { kind: KIND_TENSOR node: \"picked\" name: \"queries\" }"),
                    {"output \"picked\": this node selects queries; a gather has tensors of them"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Gather, BrokenQueriesTest,
    ::testing::Values(
        BrokenModel{"OfNothing",
                    Head("of: OF_FEATURES", ""),
                    {"node \"cells\": of must be OF_FEATURES, OF_CLASS, OF_SCORE or OF_POSITION"}},
        BrokenModel{"FeaturesWithoutAnImage",
                    Head("inputs: [\"bev\", \"picked\"] gather", "inputs: [\"picked\"] gather"),
                    {"node \"cells\": has 1 inputs; OF_FEATURES needs 2, an image and a select"}},
        BrokenModel{"ScoresOfAnImage",
                    Head("of: OF_FEATURES", "of: OF_SCORE"),
                    {"node \"cells\": has 2 inputs; it needs 1, a select"}},
        BrokenModel{"FeaturesWithoutASelect",
                    Head("inputs: [\"bev\", \"picked\"] gather", "inputs: [\"bev\", \"logits\"] gather"),
                    {"node \"cells\": its second input \"logits\" is not a select"}},
        BrokenModel{"PositionsWithoutASelect",
                    More("nodes { name: \"next\" inputs: \"bev\" gather { of: OF_POSITION } }"),
                    {"node \"next\": its input \"bev\" is not a select"}},
        BrokenModel{
            "ImageOfAnotherSize",
            Head("inputs: [\"bev\", \"picked\"] gather", "inputs: [\"half\", \"picked\"] gather",
                 "nodes { name: \"half\" inputs: \"bev\" max_pool2d { kernel_size: 2 } }"),
            {"node \"cells\": its image \"half\" has 16 x 16 cells, that of the select \"picked\" has 32 x 32"}},
        BrokenModel{"FeaturesOfSites",
                    Head("inputs: [\"bev\", \"picked\"] gather", "inputs: [\"relu\", \"picked\"] gather"),
                    {"node \"cells\": its image \"relu\" has one row per site, that of the select \"picked\" has 32 x "
                     "32"}}),
    CaseName);

std::function<void(TestModel&)> Constant(const std::string& parameters, const std::vector<int64_t>& shape) {
  return [=](TestModel& model) {
    model.graph += absl::StrCat("nodes { name: \"constant\" constant { ", parameters, " } }");
    model.weights["constant.weight"] = FilledTensor(shape);
  };
}

INSTANTIATE_TEST_SUITE_P(
    Constant, BrokenQueriesTest,
    ::testing::Values(
        BrokenModel{"NoRows",
                    Constant("columns: 2 channels: 3", {1, 2, 3}),
                    {"node \"constant\": rows is 0; it must be 1 to 2147483647"}},
        BrokenModel{"NoColumns",
                    Constant("rows: 2 channels: 3", {2, 1, 3}),
                    {"node \"constant\": columns is 0; it must be 1 to 2147483647"}},
        BrokenModel{"TooManyChannels",
                    Constant("rows: 1 columns: 1 channels: 65537", {1, 1, 1}),
                    {"node \"constant\": channels is 65537; it must be 1 to 65536"}},
        BrokenModel{"Shape",
                    Constant("rows: 2 columns: 3 channels: 4", {3, 2, 4}),
                    {"tensor \"constant.weight\": has shape [3, 2, 4]; node \"constant\" needs [2, 3, 4]"}},
        BrokenModel{"NoTensor",
                    Append("nodes { name: \"constant\" constant { rows: 2 columns: 3 channels: 4 } }"),
                    {"tensor \"constant.weight\": is missing; node \"constant\" needs it with shape [2, 3, 4]"}},
        BrokenModel{
            "TooManyValues",
            Constant("rows: 65536 columns: 32768 channels: 1", {1, 1, 1}),
            {"tensor \"constant.weight\": has shape [1, 1, 1]; node \"constant\" needs [65536, 32768, 1]",
             "node \"constant\": its result has 65536 x 32768 cells of 1 channels per sample; at most 2147483647 "
             "values are possible"}},
        BrokenModel{"Inputs",
                    [](TestModel& model) {
                      Constant("rows: 2 columns: 3 channels: 4", {2, 3, 4})(model);
                      model.Replace("\"constant\" constant", "\"constant\" inputs: \"relu\" constant");
                    },
                    {"node \"constant\": has 1 inputs; it needs 0"}}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    QueryDecode, BrokenQueriesTest,
    ::testing::Values(
        BrokenModel{"WithoutASelect",
                    Head("inputs: [\"picked\", \"heatmap\"", "inputs: [\"cells\", \"heatmap\""),
                    {"node \"boxes\": its input \"cells\" is not a select"}},
        BrokenModel{"ClassesOfTheSelect",
                    Head("class_ids: [2, 0, 1]", "class_ids: [2, 0]"),
                    {"node \"boxes\": has 2 class_ids; its select has 3 classes"}},
        BrokenModel{
            "NoClasses", Head("class_ids: [2, 0, 1]", ""), {"node \"boxes\": has 0 class_ids; it must have 1 to 32"}},
        BrokenModel{"AClassTwice",
                    Head("class_ids: [2, 0, 1]", "class_ids: [2, 0, 2]"),
                    {"node \"boxes\": class id 2 appears twice"}},
        BrokenModel{"ClassesOfLabels",
                    Head("class_ids: [2, 0, 1]", "class_ids: [2, 0, 3]"),
                    {"model.textproto: its boxes have class id 3 (node \"boxes\"), its labels 3 classes"}},
        BrokenModel{
            "Stride",
            Head("stride: 1", "stride: 2"),
            {"node \"boxes\": its select reads an image of 32 x 32 cells; 32 x 32 voxels (y, x) at a stride of 2 "
             "are 16 x 16"}},
        BrokenModel{"NoStride", Head("stride: 1", ""), {"node \"boxes\": stride is 0; it must be 1 to 1024"}},
        BrokenModel{"ThresholdsOfSomeClasses",
                    Head("score_thresholds: [0.1]", "score_thresholds: [0.1, 0.2]"),
                    {"node \"boxes\": score_thresholds has 2 values; it needs 1, or 3, one for each class"}},
        BrokenModel{"ThresholdIsOne",
                    Head("score_thresholds: [0.1]", "score_thresholds: [0, 1, 0.5]"),
                    {"node \"boxes\": score_thresholds[1] is 1; it must be at least 0 and below 1"}},
        BrokenModel{"ThresholdIsNan",
                    Head("score_thresholds: [0.1]", "score_thresholds: [nan]"),
                    {"node \"boxes\": score_thresholds[0] is nan; it must be at least 0 and below 1"}},
        BrokenModel{"RotLengthIsInfinite",
                    Head("score_thresholds: [0.1]", "min_rot_lengths: [0.3, inf, -1]"),
                    {"node \"boxes\": min_rot_lengths[1] is inf; it must be at least 0 and below inf",
                     "node \"boxes\": min_rot_lengths[2] is -1; it must be at least 0 and below inf"}},
        BrokenModel{"NoBoxes", Head("max_boxes: 4", ""), {"node \"boxes\": max_boxes is 0; it must be 1 to 5"}},
        BrokenModel{"MoreBoxesThanQueries",
                    Head("max_boxes: 4", "max_boxes: 6"),
                    {"node \"boxes\": max_boxes is 6; it must be 1 to 5"}},
        BrokenModel{"NoHeight",
                    Head("height_of: HEIGHT_CENTER", ""),
                    {"node \"boxes\": height_of must be HEIGHT_CENTER or HEIGHT_TOP"}},
        BrokenModel{"Bounds",
                    Head("center_max: [9, 9, 5]", "center_max: [9, 9, -6]"),
                    {"node \"boxes\": center_min[2] is -5 and center_max[2] -6; no centre is within"}},
        BrokenModel{
            "Channels",
            Head("\"heatmap\", \"center\", \"height\", \"dim\"", "\"heatmap\", \"center\", \"dim\", \"height\""),
            {"node \"boxes\": its height \"dim\" has 3 channels; it needs 1",
             "node \"boxes\": its dim \"height\" has 1 channels; it needs 3"}},
        BrokenModel{"RowsOfAnImage",
                    Head("[\"picked\", \"heatmap\"", "[\"picked\", \"logits\""),
                    {"node \"boxes\": its heatmap \"logits\" does not have the rows of its select \"picked\""}},
        BrokenModel{"VelocitiesWithoutTheFlag",
                    Head("has_velocity: true", ""),
                    {"node \"boxes\": has 7 inputs; without has_velocity it needs 6"}},
        BrokenModel{"TheFlagWithoutVelocities",
                    Head("\"rot\", \"vel\"]", "\"rot\"]"),
                    {"node \"boxes\": has 6 inputs; with has_velocity it needs 7"}},
        BrokenModel{"BoxesReadAsFeatures",
                    More("nodes { name: \"next\" inputs: \"boxes\" activation { function: FUNCTION_RELU } }"),
                    {"node \"next\": its input \"boxes\" computes boxes; only nms and outputs read those"}},
        BrokenModel{"OutputOfRows",
                    Head("outputs { kind: KIND_BOXES node: \"boxes\" }", "outputs { kind: KIND_BOXES node: \"dim\" }"),
                    {"output \"dim\": this node is neither an nms nor a query_decode"}}),
    CaseName);

}  // namespace
}  // namespace voxserve::broken_queries_test
