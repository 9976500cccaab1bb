#pragma once

// These functions say which layers of a network may multiply in 8 bits, and which values they then read as whole
// numbers of 8 bits. A value is its number times its scale, GraphNode::scale, which voxserve-calibrate finds. The
// number is uint8 (0 to 255) where the value cannot be negative, else int8 (-127 to 127). Both are rounded to nearest,
// ties to even, and saturate.
//
// - Sparse convolutions of all kinds, linear layers and convolutions of images in one group may multiply in 8 bits.
//   Other layers compute in floats.
// - A concatenation of values on one level has no scale of its own: each part keeps the scale of its node.
// - The compiler fuses nodes into layers (layers.h), so only the value of a layer's last node has a scale.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/graph.h"
#include "engine/model/model_config.h"

namespace voxserve {

// A value that some layer may read in 8 bits.
struct Int8Value {
  int node = 0;  // index in Graph::nodes: the last node of the layer that computes the value
  bool is_non_negative = false;
};

// A layer that may multiply in 8 bits, if all values of `inputs` have scales.
struct Int8Layer {
  int first_node = 0;       // index in Graph::nodes: the convolution or linear layer, which Int8Options names
  std::vector<int> inputs;  // nodes of the values that it reads; the parts of a concatenation in their order
  int result_node = 0;      // the last node that is fused into the layer, whose value the layer computes
};

struct Int8Candidates {
  std::vector<Int8Value> values;  // by node, ascending
  std::vector<Int8Layer> layers;  // in the order in which they run
};

Int8Candidates FindInt8Candidates(const Graph& graph);

// Returns the nodes whose values stand side by side in the value of a node: the parts of a concatenation of values on
// one level, and of the concatenations among them; else the node itself.
std::vector<int> Int8PartsOf(const Graph& graph, int node);

// Checks a model with PRECISION_INT8: each scale belongs to an Int8Value, each Int8Layer has all scales that it needs
// unless float_nodes names it, and float_nodes are names of Int8Layer::first_node. Returns INVALID_ARGUMENT (BAD_MODEL)
// with all problems. config_file: the file that sets the precision, as problems name it.
absl::Status CheckInt8(const Graph& graph, const std::vector<std::string>& float_nodes,
                       const std::string& config_file = kConfigFile);

}  // namespace voxserve
