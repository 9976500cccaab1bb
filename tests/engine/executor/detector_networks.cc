#include "tests/engine/executor/detector_networks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/operator_weights.h"

namespace voxserve {
namespace {

using support::TestModel;

// Each branch of a head, with its number of channels.
constexpr std::pair<const char*, int> kBranches[] = {{"heatmap", 2}, {"center", 2}, {"height", 1},
                                                     {"dim", 3},     {"rot", 2},    {"vel", 2}};

// Returns the nodes of a head's branches on "shared", which has 8 channels, and the nodes that make boxes of the
// branches. `conv` is the beginning of a branch's node; its number of channels is appended.
std::string Head(const std::string& conv, int stride) {
  std::string text;
  for (const auto& [branch, channels] : kBranches) {
    absl::StrAppend(&text, "nodes { name: \"", branch, "\" inputs: \"shared\" ", conv, " out_channels: ", channels,
                    " bias: true } }\n");
  }
  return absl::StrCat(text, R"(
nodes { name: "decoded" inputs: ["heatmap", "center", "height", "dim", "rot", "vel"]
        center_head_decode { convention: CONVENTION_OPENPCDET class_ids: [0, 1] stride: )",
                      stride, R"( score_threshold: 0.3
                             max_boxes: 30 has_velocity: true } }
nodes { name: "boxes" inputs: "decoded" nms { iou_threshold: 0.2 max_boxes_in: 24 max_boxes_out: 20 } }
outputs { kind: KIND_BOXES node: "boxes" })");
}

// Returns the nodes of a query_decode's branches on the rows `source`, named with this prefix, and a query_decode of
// them.
std::string QueryHead(const std::string& prefix, const std::string& select, const std::string& source,
                      const std::string& parameters) {
  std::string text, inputs = absl::StrCat("\"", select, "\"");
  for (const auto& [branch, channels] : kBranches) {
    const std::string name = absl::StrCat(prefix, branch);
    absl::StrAppend(&text, "nodes { name: \"", name, "\" inputs: \"", source, "\" linear { out_channels: ", channels,
                    " bias: true } }\n");
    absl::StrAppend(&inputs, ", \"", name, "\"");
  }
  return absl::StrCat(text, "nodes { name: \"", prefix, "decoded\" inputs: [", inputs, "] query_decode { ", parameters,
                      " class_ids: [0, 1] stride: 1 has_velocity: true } }\n");
}

}  // namespace

TestModel SiteDetector() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.25, 0.25, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "down1" inputs: "voxels" sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 3]
                                                     stride: [2, 2, 2] padding: [1, 1, 1] out_channels: 8 } }
nodes { name: "relu1" inputs: "down1" activation { function: FUNCTION_RELU } }
nodes { name: "down2" inputs: "relu1" sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 3]
                                                    stride: [2, 2, 2] padding: [1, 1, 1] out_channels: 8 } }
nodes { name: "relu2" inputs: "down2" activation { function: FUNCTION_RELU } }
nodes { name: "moved" inputs: "relu2" pool { reduce: REDUCE_SUM kind: KIND_TRANSPOSED kernel_size: [1, 1, 1]
                                             stride: [2, 2, 2] } }
nodes { name: "united" inputs: ["relu1", "moved"] add { sites: SITES_UNION } }
nodes { name: "from_above" inputs: "united" pool { reduce: REDUCE_SUM kind: KIND_STRIDED rule: RULE_FLOOR
                                                   kernel_size: [1, 1, 4] stride: [1, 1, 4] } }
nodes { name: "grown" inputs: "from_above" sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 1]
                                                         padding: [1, 1, 0] out_channels: 8 } }
nodes { name: "shared" inputs: "grown" activation { function: FUNCTION_RELU } }
)",
                             Head("sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [1, 1, 1]", /*stride=*/2));
  Weights weights(&model);
  weights.Conv("down1", 27, 4, 8).Conv("down2", 27, 8, 8).Conv("grown", 9, 8, 8);
  for (const auto& [branch, channels] : kBranches) weights.Weight(branch, {1, 8, channels}, 16).Bias(branch, channels);
  return model;
}

TestModel PillarDetector() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.25, 0.25, 4] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_FIRST )",
                             kFeatures, R"( } }
nodes { name: "features" inputs: "voxels" point_features {} }
nodes { name: "from_mean" inputs: "voxels" point_offsets { reference: REFERENCE_MEAN max_points: 3 } }
nodes { name: "from_center" inputs: "voxels" point_offsets { reference: REFERENCE_CENTER } }
nodes { name: "points" inputs: ["features", "from_mean", "from_center"] concat {} }
nodes { name: "first" inputs: "points" linear { out_channels: 4 bias: true } }
nodes { name: "first.relu" inputs: "first" activation { function: FUNCTION_RELU } }
nodes { name: "empty" inputs: "voxels" linear { out_channels: 4 bias: true } }
nodes { name: "empty.relu" inputs: "empty" activation { function: FUNCTION_RELU } }
nodes { name: "most" inputs: ["first.relu", "empty.relu", "voxels"]
        point_to_voxel { reduce: REDUCE_MAX max_points: 3 has_empty_slots: true } }
nodes { name: "of_pillar" inputs: ["most", "voxels"] voxel_to_point {} }
nodes { name: "second" inputs: ["first.relu", "of_pillar"] concat {} }
nodes { name: "mean" inputs: ["second", "voxels"] point_to_voxel { reduce: REDUCE_AVERAGE max_points: 3 } }
nodes { name: "image" inputs: "mean" to_bev {} }
nodes { name: "pooled" inputs: "image" max_pool2d { kernel_size: 3 stride: 2 padding: 1 } }
nodes { name: "conv" inputs: "pooled" conv2d { out_channels: 8 kernel_size: 3 padding: 1 } }
nodes { name: "shared" inputs: "conv" activation { function: FUNCTION_RELU } }
)",
                             Head("conv2d { kernel_size: 1", /*stride=*/2));
  Weights weights(&model);
  weights.Linear("first", 4, 10).Bias("first", 4).Linear("empty", 4, 4).Bias("empty", 4);
  weights.Weight("conv", {8, 8, 3, 3}, 72);
  for (const auto& [branch, channels] : kBranches) {
    weights.Weight(branch, {channels, 8, 1, 1}, 8).Bias(branch, channels);
  }
  return model;
}

TestModel QueryDetector() {
  TestModel model;
  model.graph =
      absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 1] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                   kFeatures, R"( } }
nodes { name: "image" inputs: "voxels" to_bev {} }
nodes { name: "conv" inputs: "image" conv2d { out_channels: 8 kernel_size: 3 padding: 1 bias: true } }
nodes { name: "shared" inputs: "conv" activation { function: FUNCTION_RELU } }
nodes { name: "logits" inputs: "shared" conv2d { out_channels: 2 kernel_size: 3 padding: 1 bias: true } }
nodes { name: "best" inputs: "logits" select { k: 24 peak_kernel: 3 border: BORDER_DROP
                                               classes_without_peak_test: [1] } }
nodes { name: "at_best" inputs: ["shared", "best"] gather { of: OF_FEATURES } }
nodes { name: "class" inputs: "best" gather { of: OF_CLASS } }
nodes { name: "of_class" inputs: "class" embedding {} }
nodes { name: "position" inputs: "best" gather { of: OF_POSITION } }
nodes { name: "of_position" inputs: "position" linear { out_channels: 8 bias: true } }
nodes { name: "with_class" inputs: ["at_best", "of_class"] add {} }
nodes { name: "queries" inputs: ["with_class", "of_position"] add {} }
nodes { name: "among" inputs: ["queries", "queries", "queries"] attention { num_heads: 2 } }
nodes { name: "second" inputs: ["with_class", "among"] add {} }
nodes { name: "second.norm" inputs: "second" layer_norm { affine: true } }
nodes { name: "key.position" constant { rows: 10 columns: 12 channels: 8 } }
nodes { name: "keys" inputs: ["shared", "key.position"] add {} }
nodes { name: "cross" inputs: ["second.norm", "keys", "keys"] attention { num_heads: 4 } }
nodes { name: "third" inputs: ["second.norm", "cross"] add {} }
nodes { name: "score" inputs: "best" gather { of: OF_SCORE } }
nodes { name: "scored" inputs: ["third", "score"] elementwise { function: FUNCTION_MULTIPLY } }
nodes { name: "padded" inputs: "logits" select { k: 1 peak_kernel: 5 border: BORDER_PAD } }
nodes { name: "at_padded" inputs: ["shared", "padded"] gather { of: OF_FEATURES } }
nodes { name: "context" inputs: ["scored", "at_padded", "at_padded"] attention {} }
nodes { name: "fourth" inputs: ["scored", "context"] add {} }
nodes { name: "kept" inputs: "logits" select { k: 16 peak_kernel: 3 border: BORDER_KEEP } }
nodes { name: "at_kept" inputs: ["shared", "kept"] gather { of: OF_FEATURES } }
)",
                   QueryHead("", "best", "fourth", "height_of: HEIGHT_CENTER max_boxes: 20 bounds_bottom: true"),
                   QueryHead("kept.", "kept", "at_kept", R"(height_of: HEIGHT_TOP max_boxes: 16
                                       score_thresholds: [0.05, 0.1] min_rot_lengths: 0.1)"),
                   R"(
nodes { name: "boxes" inputs: ["decoded", "kept.decoded"] nms { iou_threshold: 0.4 max_boxes_out: 16 } }
outputs { kind: KIND_BOXES node: "boxes" }
outputs { kind: KIND_TENSOR node: "fourth" name: "queries" })");
  Weights weights(&model);
  weights.Weight("conv", {8, 16, 3, 3}, 36).Bias("conv", 8).Weight("logits", {2, 8, 3, 3}, 36).Bias("logits", 2);
  weights.Weight("of_class", {2, 8}, 4).Linear("of_position", 8, 2).Bias("of_position", 8).Affine("second.norm", 8);
  weights.Weight("key.position", {10, 12, 8}, 4);
  for (const std::string prefix : {"", "kept."}) {
    for (const auto& [branch, channels] : kBranches) {
      weights.Linear(prefix + branch, channels, 8).Bias(prefix + branch, channels);
    }
  }
  return model;
}

}  // namespace voxserve
