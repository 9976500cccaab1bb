#pragma once

// Which nodes of a graph are computed together: the first half of the compiler (compiler.h says what is fused).
//
// A layer is a step in the making: the nodes that one kernel call computes. Layers stand in the order in which they
// run; every node that outputs depend on belongs to one.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/graph.h"
#include "kernels/core/epilogue.h"

namespace voxserve {

struct Layer {
  int first_node = 0;     // where it began; its op decides the kernel
  int result_node = 0;    // the last node absorbed: the layer computes this one's value
  int residual = -1;      // layer whose value is added; -1: none
  bool is_union = false;  // of an addition: it brings both inputs to their union, and adds no other
  std::optional<kernels::Activation> activation;
  bool has_epilogue = true;  // its kernel ends with an epilogue, which absorbs what follows
  bool has_scale = true;     // its kernel can scale what it computes, so that batch norms fold into it
  std::vector<float> scale;  // per output channel, of folded batch norms; empty: 1
  std::vector<float> bias;   // per output channel; empty: 0

  // Where the value lives: -1 in a buffer of its own, else in columns of this layer's (a concatenation's, or that of
  // convolutions that are computed as one).
  int stored_in = -1;
  int32_t column = 0;

  // The convolutions that this layer, which stands behind all others, computes as one (conv2d_merging.h). They are
  // stored in it, and it runs when the first of them would. Any other layer has none.
  std::vector<int> members;
  int32_t num_columns = 0;  // of its buffer
  int32_t num_groups = 1;   // each of its members a group; 1: all read the same

  int segment = 0;
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
  // Of the nodes' input, whose value is whole.
  int LayerOf(int node) const { return layer_of_[static_cast<size_t>(node)]; }
  // The nodes that read the layer's value.
  const std::vector<int>& ReadersOf(const Layer& layer) const {
    return consumers_[static_cast<size_t>(layer.result_node)];
  }
  // Layers whose values it reads.
  std::vector<int> InputsOf(const Layer& layer) const;
  // The layer whose scores decide about a level's sites; -1: none.
  int ScoreOf(const CoordinateLevel& level) const {
    return level.filter && level.filter->score_node >= 0 ? LayerOf(level.filter->score_node) : -1;
  }
  // True where a level's sites are those whose score here is above a threshold.
  bool DecidesSites(int node) const;
  // True for a node of the head (Program::first_head_step): one of IsHeadOp, or one that IsMadeByAnswer.
  bool IsHead(int node) const;
  // True for a voxel_to_point that nobody reads. It has neither buffer nor step: the answer copies voxels' rows to
  // points.
  bool IsMadeByAnswer(int node) const;
  // True for a layer whose value is float32 whatever the features are: the head alone reads it, it leaves the network,
  // or it decides about sites.
  bool StaysFloat32(const Layer& layer) const;

  void Append(Layer layer) { layers_.push_back(std::move(layer)); }

 private:
  // Finds the nodes that the outputs are computed from. A node that others name for its sites or its rulebook alone is
  // none of them: its level is made, and nothing else.
  void FindRead();
  void FindConsumers();
  bool DecodersReadAlone() const;  // their images, all of them
  void Make();
  void Absorb(Layer& layer);
  void MarkOutputs();
  bool IsOutput(int node) const;

  const Graph& graph_;
  std::vector<bool> is_read_;                // by node
  std::vector<std::vector<int>> consumers_;  // by node, of those that are read
  bool decodes_floats_ = true;               // decoders read images of one type: all of float32, or none
  std::vector<Layer> layers_;
  std::vector<int> layer_of_;  // by node; -1: not made yet, or never read
  std::vector<int> absorbed_;  // nodes of the layer in the making
};

}  // namespace voxserve
