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

}  // namespace voxserve
