#include "tests/engine/executor/attention_networks.h"

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/operator_weights.h"

namespace voxserve {

using support::TestModel;

TestModel AttentionNetwork() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_ZERO
                                  reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8 } }
nodes { name: "down" inputs: "stem" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2]
                                                  stride: [2, 2, 2] out_channels: 8 } }
nodes { name: "among" inputs: ["stem", "stem", "stem"] attention { num_heads: 2 } }
nodes { name: "learned" sample_rows { num_rows: 3 channels: 8 } }
nodes { name: "tokens" inputs: ["learned", "down", "down"] attention { scale: 1 } }
nodes { name: "mixed" inputs: "tokens" linear { out_channels: 8 bias: true } }
nodes { name: "both" inputs: ["mixed", "learned"] add {} }
nodes { name: "back" inputs: ["stem", "both", "tokens"] attention { num_heads: 4 scale: 0.5 } }
nodes { name: "wide" inputs: ["among", "back", "stem"] concat {} }
nodes { name: "head" inputs: "wide" linear { out_channels: 4 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Conv("stem", 27, 4, 8)
      .Conv("down", 8, 8, 8)
      .Weight("learned", {3, 8}, 1)
      .Linear("mixed", 8, 8)
      .Bias("mixed", 8)
      .Linear("head", 4, 24)
      .Bias("head", 4);
  return model;
}

TestModel GroupsNetwork() {
  TestModel model;
  model.graph = absl::StrCat(R"(
nodes { name: "voxels" voxelize { voxel_size: [0.5, 0.5, 0.5] rounding: ROUNDING_FLOOR origin: ORIGIN_MINIMUM
                                  reduce: REDUCE_MEAN )",
                             kFeatures, R"( } }
nodes { name: "stem" inputs: "voxels" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8 } }
nodes { name: "z" inputs: "stem" groups { curve: CURVE_Z size: 16 tail: TAIL_BORROWS } }
nodes { name: "transposed" inputs: "stem" groups { curve: CURVE_Z_TRANSPOSED size: 16 tail: TAIL_SHORT } }
nodes { name: "fine" inputs: ["stem", "stem", "stem"] attention { num_heads: 2 groups_of: "z" } }
nodes { name: "again" inputs: ["fine", "stem", "fine"] attention { num_heads: 1 groups_of: "transposed" } }
nodes { name: "down" inputs: "again" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2]
                                                   stride: [2, 2, 2] out_channels: 8 } }
nodes { name: "hilbert" inputs: "down"
        groups { curve: CURVE_HILBERT depth: DEPTH_FIRST_LEVEL size: 6 tail: TAIL_BORROWS } }
nodes { name: "hilbert_transposed" inputs: "down"
        groups { curve: CURVE_HILBERT_TRANSPOSED depth: DEPTH_OWN_LEVEL size: 6 tail: TAIL_BORROWS } }
nodes { name: "coarse" inputs: ["down", "down", "down"] attention { num_heads: 2 groups_of: "hilbert" } }
nodes { name: "coarse_again" inputs: ["coarse", "coarse", "down"]
        attention { num_heads: 4 groups_of: "hilbert_transposed" } }
nodes { name: "windows" inputs: "down"
        groups { size: 5 tail: TAIL_SPREAD
                 windows { shape: [6, 6, 4] shift: [1, 2, 0] axes: [AXIS_Y, AXIS_X, AXIS_Z] snake: true } } }
nodes { name: "windowed" inputs: ["coarse_again", "down", "coarse_again"] attention { num_heads: 2 groups_of: "windows" } }
nodes { name: "up" inputs: "windowed" sparse_conv { kind: KIND_INVERSE paired_with: "down" out_channels: 8 } }
nodes { name: "wide" inputs: ["fine", "again", "up"] concat {} }
nodes { name: "head" inputs: "wide" linear { out_channels: 4 bias: true } })",
                             kLabelsAndScores);
  Weights(&model)
      .Conv("stem", 27, 4, 8)
      .Conv("down", 8, 8, 8)
      .Conv("up", 8, 8, 8)
      .Linear("head", 4, 24)
      .Bias("head", 4);
  return model;
}

}  // namespace voxserve
