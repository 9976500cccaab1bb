#pragma once

// Layers groups the nodes of a graph that one kernel call computes (compiler.h says what is fused). It is the first
// half of the compiler, and is used by one thread.
//
// A layer is one such group; in most cases it becomes one step. Layers stand in the order in which they run, except
// merged ones (Layer::members). A node belongs to exactly one layer if outputs or the scores of a prune are computed
// from its values. A node that others name only for its sites or its rulebook has no layer.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/graph.h"
#include "kernels/core/epilogue.h"

namespace voxserve {

// The layers of an MLP that one kernel computes (layer_fusion.h), in the order in which their values depend on each
// other.
struct MlpParts {
  int input_norm = -1;     // -1: none
  int first = -1;          // the product that makes the hidden values, with its activation
  int second = -1;         // the product that reads them, with its residual
  std::vector<int> norms;  // behind it

  std::vector<int> All() const;
};

struct Layer {
  int first_node = 0;   // the node that the layer begins with; the node's op decides the kernel
  int result_node = 0;  // the last node that was fused into the layer: the layer computes this node's value
  int residual = -1;    // the layer that provides the value to add; -1: none
  int shortcut = -1;    // the layer whose row product this convolution computes and adds (layer_fusion.h); -1: none
  bool is_shortcut = false;     // another layer computes it as its shortcut
  std::optional<MlpParts> mlp;  // this layer is the last of these, and computes all of them
  bool is_in_mlp = false;       // a later layer computes it as a part of its MLP
  int norm = -1;                // the layer norm of this sparse convolution's result that its step computes; -1: none
  int second_norm = -1;         // the layer norm of this layer norm's result that its step computes too; -1: none
  int rotary = -1;              // the node of a rotary that this linear layer computes; -1: none
  // Another layer's step computes its value: a norm of a convolution or a second norm, which have buffers of their own,
  // or a rotary, whose value is the other layer's.
  bool is_computed_by_other = false;
  bool is_union = false;  // it adds two inputs on the union of their sites; only an activation can be fused into it
  std::optional<kernels::Activation> activation;
  bool has_epilogue = true;  // its kernel ends with an epilogue, into which following operators are fused
  bool has_scale = true;     // its kernel can scale what it computes, so that batch norms fold into it
  std::vector<float> scale;  // per output channel, of folded batch norms; empty: 1
  std::vector<float> bias;   // per output channel; empty: 0

  // The layer in whose buffer the value lives, in columns from `column` on: a concatenation, or merged convolutions.
  // -1: the layer has a buffer of its own.
  int stored_in = -1;
  int32_t column = 0;

  // The convolutions that this layer computes as one (product_merging.h); empty for ordinary layers. A merged layer
  // stands after all ordinary layers in the list. Its members' values are stored in it, and it runs when its first
  // member would.
  std::vector<int> members;
  int32_t num_columns = 0;  // columns of a merged layer's buffer
  int32_t num_groups = 1;   // above 1: every member is a group; 1: all members read the same columns

  int segment = 0;  // index of the ProgramSegment in which it runs
  // Which outputs need the layer: is_for_all: labels, boxes, or the sites that scores keep, so it always runs;
  // is_for_scores: the scores, which a request may ask for.
  bool is_for_all = false;
  bool is_for_scores = false;
  TensorSet for_tensors = 0;  // tensors of the graph that need it
};

class Layers {
 public:
  explicit Layers(const Graph& graph);

  const Graph& graph() const { return graph_; }
  const GraphNode& Node(int node) const { return graph_.nodes[static_cast<size_t>(node)]; }
  const GraphNode& FirstNode(const Layer& layer) const { return Node(layer.first_node); }

  int size() const { return static_cast<int>(layers_.size()); }
  Layer& At(int layer) { return layers_[static_cast<size_t>(layer)]; }
  const Layer& At(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // Returns the layer that computes this node's value. The node must be a layer's result.
  int LayerOf(int node) const { return layer_of_[static_cast<size_t>(node)]; }
  // Returns the nodes that read the layer's value.
  const std::vector<int>& ReadersOf(const Layer& layer) const {
    return consumers_[static_cast<size_t>(layer.result_node)];
  }
  // Returns the layers that provide the values which this layer reads.
  std::vector<int> InputsOf(const Layer& layer) const;
  // Returns the layer of the scores that decide which sites a level keeps; -1: none.
  int ScoreOf(const CoordinateLevel& level) const {
    return level.filter && level.filter->score_node >= 0 ? LayerOf(level.filter->score_node) : -1;
  }
  // Returns true if the node's values are the scores of a prune and so decide which sites a level keeps.
  bool DecidesSites(int node) const;
  // True for a node of the head (Program::first_head_step): its operator is an IsHeadOp, or IsMadeByAnswer is true.
  bool IsHead(int node) const;
  // True for a voxel_to_point that no node reads. It has neither buffer nor step: the output step copies voxels' rows
  // to points.
  bool IsMadeByAnswer(int node) const;
  // Returns true for positions of sites: the result of a site_position, or of a pool of positions.
  bool IsPosition(int node) const;
  // Returns true if the layer's values are float32 whatever type the features have. They are if they are positions, or
  // if all nodes that read them read float32; that includes an output that no node reads.
  bool StaysFloat32(const Layer& layer) const;
  // Returns true if `reader` can read the values of its input `node` as float32 whatever type the features have. So can
  // - the head; but if another node also reads an image of a decoder, or rows of queries of one, no decoder can,
  // - a select, and a prune that reads scores,
  // - a rotary, which rotates before it rounds,
  // - a pool that reads positions.
  bool ReadsFloat32(int reader, int node) const;
  // Returns true if a kernel that computes an MLP (layer_fusion.h) computes or reads for it the node's values.
  bool IsOfMlp(int node) const {
    const Layer& layer = At(LayerOf(node));
    return layer.is_in_mlp || layer.mlp;
  }
  bool IsOutput(int node) const;  // true if an output has the node's values

  void Append(Layer layer) { layers_.push_back(std::move(layer)); }
  // Lets a convolution compute its shortcut too. One of the two layers is the other's residual; the convolution then
  // computes the value of that other one.
  void FuseShortcut(int conv, int shortcut);
  // Lets the last of the parts compute all of them.
  void FuseMlp(const MlpParts& parts);
  // Lets a linear layer compute the rotary node that alone reads it.
  void FuseRotary(int product, int rotary);

 private:
  // Does the same as InputsOf, for a layer that computes nothing but its own nodes.
  std::vector<int> OwnInputsOf(const Layer& layer) const;
  // Finds the nodes from whose values the outputs and the scores of prunes are computed.
  void FindRead();
  void FindConsumers();
  bool DecodersReadAlone() const;  // true where only decoders read the decoders' images and rows of queries
  void Make();
  void Absorb(Layer& layer);
  void MarkOutputs();

  const Graph& graph_;
  std::vector<bool> is_read_;                // by node
  std::vector<std::vector<int>> consumers_;  // by node: the nodes that read it, without those that are not read
  bool decodes_floats_ = true;               // true: all images that decoders read are float32; false: none is
  std::vector<Layer> layers_;
  std::vector<int> layer_of_;  // by node; -1: not made yet, or never read
  std::vector<int> absorbed_;  // nodes of the layer that is being made
};

}  // namespace voxserve
