#include "tests/engine/executor/operator_networks.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/epilogue.h"
#include "tests/engine/executor/attention_networks.h"
#include "tests/engine/executor/detector_networks.h"
#include "tests/engine/executor/operator_weights.h"
#include "tests/engine/executor/position_network.h"

namespace voxserve {
namespace {

using support::TestModel;

// Returns a network with every kind of convolution and pool, and with operators on rows of sites.
TestModel OfSites() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN
                                  max_points_per_voxel: 2 )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8 } }
nodes { name: "norm" inputs: "stem" batch_norm {} }
nodes { name: "relu" inputs: "norm" activation { function: FUNCTION_RELU } }
nodes { name: "grouped" inputs: "relu"
        sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 1] out_channels: 8 groups: 4 bias: true } }
nodes { name: "leaky" inputs: "grouped" activation { function: FUNCTION_LEAKY_RELU } }
nodes { name: "cross" inputs: "leaky" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8
                                                    kernel_shape: KERNEL_SHAPE_CROSS } }
nodes { name: "residual" inputs: ["cross", "relu"] add {} }
nodes { name: "silu" inputs: "residual" activation { function: FUNCTION_SILU } }
nodes { name: "listed" inputs: "silu" sparse_conv { kind: KIND_SUBMANIFOLD out_channels: 8 dilation: [1, 2, 1]
                                                    offsets: [0, 0, 0,  1, 0, -1,  -2, 1, 1] } }
nodes { name: "padded" inputs: "listed" sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 3]
                                                      stride: [2, 2, 2] padding: [1, 1, 1] out_channels: 8 } }
nodes { name: "floor" inputs: "listed" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2]
                                                     stride: [2, 2, 2] out_channels: 6 } }
nodes { name: "expand" inputs: "listed" sparse_conv { kind: KIND_STRIDED rule: RULE_EXPAND kernel_size: [3, 3, 3]
                                                      stride: [2, 2, 2] out_channels: 6 } }
nodes { name: "inner" inputs: "padded" pool { reduce: REDUCE_SUM kind: KIND_SUBMANIFOLD kernel_size: [3, 1, 3] } }
nodes { name: "group_norm" inputs: "inner" group_norm { num_groups: 4 affine: true } }
nodes { name: "most" inputs: "group_norm" global_pool { reduce: REDUCE_MAX } }
nodes { name: "squeezed" inputs: "most" linear { out_channels: 8 bias: true } }
nodes { name: "gate" inputs: "squeezed" activation { function: FUNCTION_SIGMOID } }
nodes { name: "gated" inputs: ["group_norm", "gate"] broadcast { function: FUNCTION_MULTIPLY } }
nodes { name: "inverse" inputs: "gated" sparse_conv { kind: KIND_INVERSE paired_with: "padded" out_channels: 6 } }
nodes { name: "from_expand" inputs: "expand" sparse_conv { kind: KIND_INVERSE paired_with: "expand" out_channels: 6 } }
nodes { name: "transposed" inputs: "gated" sparse_conv { kind: KIND_TRANSPOSED kernel_size: [3, 3, 3] stride: [2, 2, 2]
                                                         padding: [1, 1, 1] output_padding: [1, 1, 1]
                                                         out_channels: 6 } }
nodes { name: "gelu" inputs: "transposed" activation { function: FUNCTION_GELU } }
nodes { name: "onto" inputs: "gelu" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [3, 3, 3]
                                                  out_channels: 6 } }
nodes { name: "generative" inputs: "floor" sparse_conv { kind: KIND_GENERATIVE kernel_size: [3, 3, 3] stride: [2, 2, 2]
                                                         out_channels: 6 } }
nodes { name: "back" inputs: "generative" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [1, 1, 3]
                                                        out_channels: 6 } }
nodes { name: "transposed_onto" inputs: "floor" sparse_conv { kind: KIND_TRANSPOSED sites_of: "voxels"
                                                              kernel_size: [3, 3, 3] stride: [2, 2, 2]
                                                              out_channels: 6 } }
nodes { name: "largest" inputs: "listed" pool { reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_PADDED
                                                kernel_size: [3, 3, 3] stride: [2, 2, 2] padding: [1, 1, 1] } }
nodes { name: "unpooled" inputs: "largest" pool { reduce: REDUCE_AVERAGE kind: KIND_INVERSE paired_with: "largest" } }
nodes { name: "together" inputs: ["inverse", "from_expand", "onto", "back", "transposed_onto", "unpooled"] concat {} }
nodes { name: "instance_norm" inputs: "together" instance_norm { affine: true } }
nodes { name: "tanh" inputs: "instance_norm" activation { function: FUNCTION_TANH } }
nodes { name: "narrow" inputs: "tanh" linear { out_channels: 8 } }
nodes { name: "mean" inputs: "narrow" global_pool { reduce: REDUCE_AVERAGE } }
nodes { name: "shifted" inputs: ["narrow", "mean"] broadcast { function: FUNCTION_ADD } }
nodes { name: "total" inputs: "stem" global_pool { reduce: REDUCE_SUM } }
nodes { name: "wide" inputs: ["shifted", "total"] broadcast { function: FUNCTION_CONCAT } }
nodes { name: "head" inputs: "wide" linear { out_channels: 5 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Conv("stem", 27, 4, 8)
      .BatchNorm("norm", 8)
      .Conv("grouped", 9, 2, 8)
      .Bias("grouped", 8)
      .Conv("cross", 7, 8, 8)
      .Conv("listed", 3, 8, 8)
      .Conv("padded", 27, 8, 8)
      .Conv("floor", 8, 8, 6)
      .Conv("expand", 27, 8, 6)
      .Affine("group_norm", 8)
      .Linear("squeezed", 8, 8)
      .Bias("squeezed", 8)
      .Conv("inverse", 27, 8, 6)
      .Conv("from_expand", 27, 6, 6)
      .Conv("transposed", 27, 8, 6)
      .Conv("onto", 27, 6, 6)
      .Conv("generative", 27, 6, 6)
      .Conv("back", 3, 6, 6)
      .Conv("transposed_onto", 27, 6, 6)
      .Affine("instance_norm", 38)
      .Linear("narrow", 8, 38)
      .Linear("head", 5, 16)
      .Bias("head", 5);
  return model;
}

// Returns a network that samples farthest points. The origin of the voxels is the smallest coordinates of the sampled
// points.
TestModel OfSampledPoints() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "sample" farthest_point_sample { num_points: 25 seed: 3 } }
nodes { name: "voxels" inputs: "sample" voxelize { voxel_size: [0.5, 0.4, 0.3] rounding: ROUNDING_HALF_EVEN
                                                   origin: ORIGIN_MINIMUM reduce: REDUCE_FIRST )",
                             kFeatures, R"( } }
nodes { name: "down" inputs: "voxels" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [3, 3, 3]
                                                    stride: [2, 3, 2] out_channels: 8 bias: true } }
nodes { name: "relu" inputs: "down" activation { function: FUNCTION_RELU } }
nodes { name: "head" inputs: "relu" sparse_conv { kind: KIND_INVERSE paired_with: "down" out_channels: 3 bias: true } })",
                             kLabelsAndScores);
  Weights(&model).Conv("down", 27, 4, 8).Bias("down", 8).Conv("head", 27, 8, 3).Bias("head", 3);
  return model;
}

// Returns a network whose voxelize node has no range, so that voxels may lie anywhere and have negative indices.
TestModel OfNoRange() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_ZERO
                                  reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "down" inputs: "voxels" sparse_conv { kind: KIND_STRIDED rule: RULE_EXPAND kernel_size: [3, 3, 3]
                                                    stride: [2, 2, 2] out_channels: 8 } }
nodes { name: "up" inputs: "down" sparse_conv { kind: KIND_GENERATIVE kernel_size: [2, 2, 2] stride: [2, 2, 2]
                                                out_channels: 8 bias: true } }
nodes { name: "head" inputs: "up" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [3, 3, 3]
                                                out_channels: 3 bias: true } })",
                             kLabelsAndScores);
  Weights(&model).Conv("down", 27, 4, 8).Conv("up", 8, 8, 8).Bias("up", 8).Conv("head", 27, 8, 3).Bias("head", 3);
  return model;
}

// Returns a network that computes rows of points beside rows of sites, like SPVCNN.
TestModel OfPoints() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "points" inputs: "voxels" point_features {} }
nodes { name: "lifted" inputs: "points" linear { out_channels: 8 bias: true } }
nodes { name: "norm" inputs: "lifted" batch_norm {} }
nodes { name: "relu" inputs: "norm" activation { function: FUNCTION_RELU } }
nodes { name: "most" inputs: ["relu", "voxels"] point_to_voxel { reduce: REDUCE_MAX } }
nodes { name: "stem" inputs: "most" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8 } }
nodes { name: "down" inputs: "stem" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2]
                                                  stride: [2, 2, 2] out_channels: 8 } }
nodes { name: "mean" inputs: ["relu", "voxels"] point_to_voxel { reduce: REDUCE_AVERAGE sites_of: "down" } }
nodes { name: "total" inputs: ["relu", "voxels"] point_to_voxel { reduce: REDUCE_SUM sites_of: "down" } }
nodes { name: "coarse" inputs: ["down", "mean", "total"] concat {} }
nodes { name: "finer" inputs: ["coarse", "stem"] devoxelize {} }
nodes { name: "of_sites" inputs: ["finer", "voxels"] voxel_to_point {} }
nodes { name: "between" inputs: ["coarse", "voxels"] devoxelize {} }
nodes { name: "sum" inputs: ["between", "of_sites"] add {} }
nodes { name: "wide" inputs: ["sum", "relu"] concat {} }
nodes { name: "head" inputs: "wide" linear { out_channels: 4 bias: true } }
nodes { name: "labels" inputs: "head" argmax {} }
outputs { kind: KIND_LABELS node: "labels" } outputs { kind: KIND_SCORES node: "head" })");
  Weights(&model)
      .Linear("lifted", 8, 4)
      .Bias("lifted", 8)
      .BatchNorm("norm", 8)
      .Conv("stem", 27, 8, 8)
      .Conv("down", 8, 8, 8)
      .Linear("head", 4, 32)
      .Bias("head", 4);
  return model;
}

// Returns a network that copies sites to the cells of a grid and back, and has CenterPoint's heads on a bird's-eye view
// of the sites.
TestModel OfImages() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 6 } }
nodes { name: "down" inputs: "stem" sparse_conv { kind: KIND_STRIDED rule: RULE_PADDED kernel_size: [3, 3, 3]
                                                  stride: [2, 2, 2] padding: [1, 1, 1] out_channels: 6 } }
nodes { name: "cells" inputs: "down" to_dense {} }
nodes { name: "mixed" inputs: "cells" linear { out_channels: 6 bias: true } }
nodes { name: "sites" inputs: "mixed" from_dense { sites_of: "down" } }
nodes { name: "image" inputs: "sites" to_bev {} }
nodes { name: "conv" inputs: "image" conv2d { out_channels: 8 kernel_size: 3 padding: 1 } }
nodes { name: "norm" inputs: "conv" batch_norm {} }
nodes { name: "relu" inputs: "norm" activation { function: FUNCTION_RELU } }
nodes { name: "finer" inputs: "relu" conv_transpose2d { out_channels: 8 kernel_size: 2 stride: 2 bias: true } }
nodes { name: "heatmap" inputs: "finer" conv2d { out_channels: 2 kernel_size: 3 padding: 1 bias: true } }
nodes { name: "center" inputs: "finer" conv2d { out_channels: 2 kernel_size: 1 bias: true } }
nodes { name: "height" inputs: "finer" conv2d { out_channels: 1 kernel_size: 1 bias: true } }
nodes { name: "dim" inputs: "finer" conv2d { out_channels: 3 kernel_size: 1 bias: true } }
nodes { name: "rot" inputs: "finer" conv2d { out_channels: 2 kernel_size: 1 bias: true } }
nodes { name: "vel" inputs: "finer" conv2d { out_channels: 2 kernel_size: 1 bias: true } }
nodes { name: "pcdet" inputs: ["heatmap", "center", "height", "dim", "rot", "vel"]
        center_head_decode { convention: CONVENTION_OPENPCDET class_ids: [0, 1] stride: 1 score_threshold: 0.3
                             max_boxes: 20 has_velocity: true } }
nodes { name: "det3d" inputs: ["heatmap", "center", "height", "dim", "rot", "vel"]
        center_head_decode { convention: CONVENTION_DET3D class_ids: [2, 3] stride: 1 score_threshold: 0.3
                             max_boxes: 20 has_velocity: true } }
nodes { name: "boxes" inputs: ["pcdet", "det3d"] nms { iou_threshold: 0.2 max_boxes_in: 16 max_boxes_out: 12 } }
outputs { kind: KIND_BOXES node: "boxes" })");
  Weights weights(&model);
  weights.Conv("stem", 27, 4, 6)
      .Conv("down", 27, 6, 6)
      .Linear("mixed", 6, 6)
      .Bias("mixed", 6)
      .Weight("conv", {8, 24, 3, 3}, 54)
      .BatchNorm("norm", 8)
      .Weight("finer", {8, 8, 2, 2}, 8)
      .Bias("finer", 8)
      .Weight("heatmap", {2, 8, 3, 3}, 18)
      .Bias("heatmap", 2);
  for (const auto& [head, channels] : {std::pair("center", 2), std::pair("height", 1), std::pair("dim", 3),
                                       std::pair("rot", 2), std::pair("vel", 2)}) {
    weights.Weight(head, {channels, 8, 1, 1}, 8).Bias(head, channels);
  }
  return model;
}

// Returns a network with SECOND's anchor head.
TestModel OfAnchors() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 4 } }
nodes { name: "image" inputs: "stem" to_bev {} }
nodes { name: "relu" inputs: "image" activation { function: FUNCTION_RELU } }
nodes { name: "conv" inputs: "relu" conv2d { out_channels: 8 kernel_size: [3, 3] stride: [2, 2] padding: [1, 1] } }
nodes { name: "scores" inputs: "conv" conv2d { out_channels: 8 kernel_size: 1 bias: true } }
nodes { name: "residuals" inputs: "conv" conv2d { out_channels: 28 kernel_size: 1 bias: true } }
nodes { name: "directions" inputs: "conv" conv2d { out_channels: 8 kernel_size: 1 bias: true } }
nodes { name: "decoded" inputs: ["scores", "residuals", "directions"]
        anchor_head_decode { anchors { class_id: 0 size: [1.5, 0.7, 1.2] bottom: 0.5 rotations: [0, 1.57] }
                             anchors { class_id: 1 size: [0.4, 0.5, 1.7] bottom: 0.2 rotations: [0, 1.57] }
                             num_direction_bins: 2 direction_offset: 0.78539 score_threshold: 0.3 max_boxes: 40 } }
nodes { name: "boxes" inputs: "decoded" nms { iou_threshold: 0.1 max_boxes_out: 20 } }
outputs { kind: KIND_BOXES node: "boxes" })");
  Weights(&model)
      .Conv("stem", 27, 4, 4)
      .Weight("conv", {8, 32, 3, 3}, 72)
      .Weight("scores", {8, 8, 1, 1}, 8)
      .Bias("scores", 8)
      .Weight("residuals", {28, 8, 1, 1}, 16)
      .Bias("residuals", 28)
      .Weight("directions", {8, 8, 1, 1}, 8)
      .Bias("directions", 8);
  return model;
}

// Returns a network with operators that keep a part of the sites, and operators that unite sites.
TestModel OfUnions() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [6, 5, 4] reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 6 } }
nodes { name: "low" inputs: "stem" crop { lower_bound: [0, 2, 0] upper_bound: [7, 9, 5] } }
nodes { name: "high" inputs: "stem" crop { lower_bound: [4, 0, 3] } }
nodes { name: "inner" inputs: "low" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 6 } }
nodes { name: "grown" inputs: "low" sparse_conv { kind: KIND_GENERATIVE kernel_size: [2, 2, 2] stride: [1, 1, 1]
                                                   out_channels: 6 } }
nodes { name: "both" inputs: ["inner", "high"] add { sites: SITES_UNION } }
nodes { name: "all" inputs: ["both", "grown", "low"] concat { sites: SITES_UNION } }
nodes { name: "same" inputs: ["all", "all"] add { sites: SITES_SAME } }
nodes { name: "head" inputs: "same" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [3, 3, 3]
                                                  out_channels: 4 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Conv("stem", 27, 4, 6)
      .Conv("inner", 27, 6, 6)
      .Conv("grown", 8, 6, 6)
      .Conv("head", 27, 18, 4)
      .Bias("head", 4);
  return model;
}

// Returns a network whose voxels have four axes.
TestModel OfFourAxes() {
  TestModel model;
  model.graph = absl::StrCat(R"(
dimension: 4
nodes { name: "voxels" voxelize { voxel_size: [1, 1, 1, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0, -1] range_max: [6, 5, 4, 1] reduce: REDUCE_MEAN
                                  axes: ["x", "y", "z", "f"] )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3, 3] out_channels: 6 } }
nodes { name: "expand" inputs: "stem" sparse_conv { kind: KIND_STRIDED rule: RULE_EXPAND kernel_size: [3, 1, 3, 3]
                                                    stride: [2, 1, 2, 2] out_channels: 8 bias: true } }
nodes { name: "fine" inputs: "expand" sparse_conv { kind: KIND_INVERSE paired_with: "expand" out_channels: 6 } }
nodes { name: "largest" inputs: "fine" pool { reduce: REDUCE_MAX kind: KIND_STRIDED rule: RULE_PADDED
                                              kernel_size: [3, 3, 3, 2] stride: [2, 2, 2, 1] padding: [1, 1, 1, 0]
                                              dilation: [1, 2, 1, 1] } }
nodes { name: "back" inputs: "largest" sparse_conv { kind: KIND_INVERSE paired_with: "largest" out_channels: 6 } }
nodes { name: "low" inputs: "back" crop { upper_bound: [4, 5, 4, 3] } }
nodes { name: "grown" inputs: "low" sparse_conv { kind: KIND_TRANSPOSED kernel_size: [2, 2, 2, 2] stride: [2, 2, 2, 2]
                                                  out_channels: 6 } }
nodes { name: "onto" inputs: "grown" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [2, 2, 2, 2]
                                                   stride: [2, 2, 2, 2] out_channels: 6 } }
nodes { name: "sum" inputs: ["onto", "fine"] add {} }
nodes { name: "mean" inputs: "sum" global_pool { reduce: REDUCE_AVERAGE } }
nodes { name: "wide" inputs: ["sum", "mean"] broadcast { function: FUNCTION_CONCAT } }
nodes { name: "head" inputs: "wide" linear { out_channels: 4 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Conv("stem", 81, 4, 6)
      .Conv("expand", 27, 6, 8)
      .Bias("expand", 8)
      .Conv("fine", 27, 8, 6)
      .Conv("back", 54, 6, 6)
      .Conv("grown", 16, 6, 6)
      .Conv("onto", 16, 6, 6)
      .Linear("head", 4, 12)
      .Bias("head", 4);
  return model;
}

// Returns a network whose sites depend on scores: it prunes sites, generates new ones, and prunes these.
TestModel OfPrunedSites() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_ZERO
                                  reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "score" inputs: "voxels" linear { out_channels: 1 bias: true } }
nodes { name: "good" inputs: ["voxels", "score"] prune { threshold: 0 } }
nodes { name: "grown" inputs: "good" sparse_conv { kind: KIND_GENERATIVE kernel_size: [3, 3, 3] out_channels: 6
                                                   bias: true } }
nodes { name: "again" inputs: "grown" linear { out_channels: 1 } }
nodes { name: "better" inputs: ["grown", "again"] prune { threshold: 0.1 } }
nodes { name: "head" inputs: "better" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [3, 3, 3]
                                                    out_channels: 4 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Linear("score", 1, 4)
      .Bias("score", 1)
      .Conv("grown", 27, 4, 6)
      .Bias("grown", 6)
      .Linear("again", 1, 6)
      .Conv("head", 27, 6, 4)
      .Bias("head", 4);
  return model;
}

// Returns nodes for every activation of `input`, whose values are above 0, each limited to [-4, 4], and the node `all`
// that concatenates their results.
std::string ActivationNodes(const std::string& input, const std::string& all) {
  std::string nodes;
  std::vector<std::string> limited;
  for (const auto& [function, name] : kernels::kActivationNames) {
    const char* parameters = "";
    if (function == kernels::ActivationFunction::kElu) parameters = "alpha: 0.7";
    if (function == kernels::ActivationFunction::kClamp) parameters = "minimum: -0.5 maximum: 6";
    if (function == kernels::ActivationFunction::kSoftplus) parameters = "beta: 2";
    if (function == kernels::ActivationFunction::kPower) parameters = "exponent: 1.5";
    limited.push_back(absl::StrCat("\"limited_", name, "\""));
    absl::StrAppend(&nodes, "nodes { name: \"", name, "\" inputs: \"", input, "\" activation { function: FUNCTION_",
                    name, " ", parameters, " } }\nnodes { name: ", limited.back(), " inputs: \"", name,
                    "\" activation { function: FUNCTION_CLAMP minimum: -4 maximum: 4 } }\n");
  }
  return absl::StrCat(nodes, "nodes { name: \"", all, "\" inputs: [", absl::StrJoin(limited, ", "), "] concat {} }");
}

}  // namespace

TestModel RowNetwork() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [1, 1, 1] rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE
                                  range_min: [0, 0, 0] range_max: [7, 5, 4] reduce: REDUCE_FIRST )",
                             kFeatures, R"( } }
nodes { name: "points" inputs: "voxels" point_features {} }
nodes { name: "lifted" inputs: "points" linear { out_channels: 80 bias: true } }
nodes { name: "wide_norm" inputs: "lifted" layer_norm { affine: true } }
nodes { name: "wide_softmax" inputs: "wide_norm" softmax {} }
nodes { name: "gated" inputs: ["wide_norm", "wide_softmax"] multiply { sites: SITES_SAME } }
nodes { name: "narrow" inputs: "gated" linear { out_channels: 12 } }
nodes { name: "slopes" inputs: "narrow" prelu {} }
nodes { name: "most" inputs: ["slopes", "voxels"] point_to_voxel { reduce: REDUCE_MAX } }
nodes { name: "cells" inputs: "voxels" activation { function: FUNCTION_HARD_SIGMOID } }
nodes { name: "numbers" inputs: "cells" activation { function: FUNCTION_POWER exponent: 0 } }
nodes { name: "looked_up" inputs: "numbers" embedding { channel: 2 } }
nodes { name: "stem" inputs: "most" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 12 } }
nodes { name: "again" inputs: "stem" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 12 }
        weights_of: "stem" }
nodes { name: "positive" inputs: "again" activation { function: FUNCTION_SOFTPLUS } } )",
                             ActivationNodes("positive", "activated"), R"(
nodes { name: "mixed" inputs: "activated" linear { out_channels: 12 } }
nodes { name: "abs" inputs: "stem" activation { function: FUNCTION_ABS } }
nodes { name: "product" inputs: ["mixed", "abs"] multiply {} }
nodes { name: "average" inputs: "product" row_reduce { function: FUNCTION_MEAN } }
nodes { name: "centred" inputs: ["product", "average"] elementwise { function: FUNCTION_SUBTRACT } }
nodes { name: "most_of_row" inputs: "centred" row_reduce { function: FUNCTION_MAX } }
nodes { name: "least_of_row" inputs: "centred" row_reduce { function: FUNCTION_MIN } }
nodes { name: "span" inputs: ["most_of_row", "least_of_row"] elementwise { function: FUNCTION_SUBTRACT } }
nodes { name: "ratio" inputs: ["centred", "span"] elementwise { function: FUNCTION_DIVIDE epsilon: 0.001 } }
nodes { name: "higher" inputs: ["ratio", "abs"] elementwise { function: FUNCTION_MAXIMUM } }
nodes { name: "lower" inputs: ["higher", "most_of_row"] elementwise { function: FUNCTION_MINIMUM } }
nodes { name: "length" inputs: "lower" row_reduce { function: FUNCTION_LENGTH } }
nodes { name: "total" inputs: "lower" row_reduce { function: FUNCTION_SUM } }
nodes { name: "lengthened" inputs: ["lower", "length"] elementwise { function: FUNCTION_ADD } }
nodes { name: "totalled" inputs: ["total", "lengthened"] elementwise { function: FUNCTION_MULTIPLY } }
nodes { name: "where" inputs: "product" site_coordinates { scale: [0.5, 0.25, 0.125] shift: [0, 1, -1] } }
nodes { name: "unit" inputs: "product" l2_norm {} }
nodes { name: "slope" inputs: "unit" prelu { } }
nodes { name: "gem" inputs: "product" global_pool { reduce: REDUCE_GENERALISED_MEAN exponent: 2.5 epsilon: 0.001 } }
nodes { name: "descriptor" inputs: "gem" l2_norm {} }
nodes { name: "attention" inputs: "descriptor" softmax {} }
nodes { name: "scaled" inputs: ["descriptor", "attention"] multiply {} }
nodes { name: "brought" inputs: ["slope", "scaled"] broadcast { function: FUNCTION_MULTIPLY } }
nodes { name: "all" inputs: ["brought", "looked_up", "totalled", "where"] concat {} }
nodes { name: "normed" inputs: "all" layer_norm {} }
nodes { name: "head" inputs: "normed" linear { out_channels: 5 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Linear("lifted", 80, 4)
      .Bias("lifted", 80)
      .Affine("wide_norm", 80)
      .Linear("narrow", 12, 80)
      .Weight("slopes", {12}, 4)
      .Weight("looked_up", {4, 6}, 2)
      .Conv("stem", 27, 12, 12)
      .Linear("mixed", 12, 12 * static_cast<int>(std::size(kernels::kActivationNames)))
      .Weight("slope", {1}, 4)
      .Linear("head", 5, 33)
      .Bias("head", 5);
  return model;
}

std::vector<OperatorNetwork> OperatorNetworks() {
  return {{"sites", OfSites()},
          {"sampled points", OfSampledPoints()},
          {"no range", OfNoRange()},
          {"points", OfPoints()},
          {"unions", OfUnions()},
          {"pruned sites", OfPrunedSites()},
          {"images", OfImages()},
          {"anchors", OfAnchors()},
          {"four axes", OfFourAxes()},
          {"attention", AttentionNetwork()},
          {"groups", GroupsNetwork()},
          {"positions", PositionNetwork()},
          {"rows", RowNetwork()},
          {"detector of sites", SiteDetector()},
          {"detector of pillars", PillarDetector()},
          {"detector of queries", QueryDetector()}};
}

}  // namespace voxserve
