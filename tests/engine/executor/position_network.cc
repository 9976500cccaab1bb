#include "tests/engine/executor/position_network.h"

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/operator_weights.h"

namespace voxserve {

support::TestModel PositionNetwork() {
  support::TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_MINIMUM
                                  reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "first" inputs: "voxels" site_position { of: OF_FIRST_POINT scale: [20, 20, 20] shift: [1, 2, 3] } }
nodes { name: "mean" inputs: "voxels" site_position { of: OF_MEAN_POINT scale: [20, 20, 10] from_minimum: true } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 12 } }
nodes { name: "queries" inputs: "stem" linear { out_channels: 12 bias: true } }
nodes { name: "keys" inputs: "stem" linear { out_channels: 12 } }
nodes { name: "rotated_queries" inputs: ["queries", "mean"] rotary { num_heads: 2 base: 10 } }
nodes { name: "rotated_keys" inputs: ["keys", "mean"] rotary { num_heads: 2 base: 10 } }
nodes { name: "near" inputs: ["rotated_queries", "rotated_keys", "stem"] attention { num_heads: 2 } }
nodes { name: "down" inputs: "near" pool { kind: KIND_STRIDED rule: RULE_FLOOR reduce: REDUCE_MAX
                                           kernel_size: [2, 2, 2] stride: [2, 2, 2] } }
nodes { name: "mean_of_mean" inputs: "mean" pool { kind: KIND_STRIDED rule: RULE_FLOOR reduce: REDUCE_AVERAGE
                                                   kernel_size: [2, 2, 2] stride: [2, 2, 2] } }
nodes { name: "by_position" inputs: ["down", "mean_of_mean"] rotary { base: 10 } }
nodes { name: "by_coordinate" inputs: "down" rotary { base: 100 } }
nodes { name: "far" inputs: ["by_position", "by_coordinate", "down"] attention {} }
nodes { name: "beside" inputs: ["far", "mean_of_mean"] concat {} }
nodes { name: "up" inputs: "beside" pool { kind: KIND_INVERSE paired_with: "down" reduce: REDUCE_SUM } }
nodes { name: "placed" inputs: "first" linear { out_channels: 15 } }
nodes { name: "sum" inputs: ["up", "placed"] add {} }
nodes { name: "wide" inputs: ["sum", "first", "near"] concat {} }
nodes { name: "head" inputs: "wide" linear { out_channels: 4 bias: true } }
nodes { name: "best" inputs: "head" argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["head", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" } outputs { kind: KIND_SCORES node: "scores" }
outputs { kind: KIND_TENSOR node: "mean" name: "fine" }
outputs { kind: KIND_TENSOR node: "mean_of_mean" name: "coarse" }
)");
  Weights(&model)
      .Conv("stem", 27, 4, 12)
      .Linear("queries", 12, 12)
      .Bias("queries", 12)
      .Linear("keys", 12, 12)
      .Weight("placed", {15, 3}, 60)
      .Weight("head", {4, 30}, 200)
      .Bias("head", 4);
  return model;
}

}  // namespace voxserve
