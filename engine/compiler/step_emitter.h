#pragma once

// The program in the making, for the functions that turn layers into steps (operators.h): where values lie, which
// rulebooks and levels steps use, and the list of steps. It appends what the functions hand it, and makes the steps
// that answer. One thread.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/compiler/buffer_layout.h"
#include "engine/compiler/compiler.h"
#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"
#include "engine/ops/step.h"

namespace voxserve {

class StepEmitter {
 public:
  // All outlive the emitter. A layer's weights are moved out of it, into its steps.
  StepEmitter(const CompileTarget& target, Layers& layers, BufferLayout& buffers, Program& program)
      : graph_(layers.graph()), target_(target), layers_(layers), buffers_(buffers), program_(program) {}

  const Graph& graph() const { return graph_; }
  const CompileTarget& target() const { return target_; }
  Layers& layers() { return layers_; }
  BufferLayout& buffers() { return buffers_; }
  Program& program() { return program_; }

  const GraphNode& Node(int node) const { return layers_.Node(node); }
  Layer& At(int layer) { return layers_.At(layer); }
  const GraphNode& FirstNode(const Layer& layer) const { return layers_.FirstNode(layer); }
  // The spatial shape of a level that has one.
  const kernels::Axes& ShapeOf(int level) const {
    return *graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape;
  }

  // Where the value lies of a layer, or of the layer that computes a node; counts the next step as one that touches it.
  BufferSlice Touch(int layer) { return buffers_.Touch(layer); }
  BufferSlice TouchNode(int node) { return buffers_.Touch(layers_.LayerOf(node)); }
  // The same of an input of the node with which the layer begins.
  BufferSlice TouchInput(int layer, size_t input = 0) { return TouchNode(FirstNode(At(layer)).inputs[input]); }

  // Appends a step of the layer.
  void Push(int layer, std::unique_ptr<Step> step) { PushFor(At(layer), std::move(step)); }
  // Moves the layer's bias out of it, and counts it.
  FusedEpilogue TakeEpilogue(int layer);
  // Weights of the layer's step, batch norms folded in.
  void CountWeights(int layer, const std::vector<float>& values);

  // The index in the program of the rulebook that a convolution or pool walks. conv_index: -1 for a pool's.
  template <typename Op>
  int RulebookOf(const Op& op, int conv_index) {
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(op.rulebook)];
    const int searched = FindOrAdd({.spec = spec, .first_conv = conv_index});
    if (!op.is_swapped()) return searched;
    return FindOrAdd({.spec = spec, .swap_of = searched, .first_conv = conv_index});
  }
  int FindOrAdd(const ProgramRulebook& wanted);

  // Names a level whose steps ask where each sample's rows begin, or read their sites' keys.
  void AddSampleLevel(int level) { AddLevel(level, sample_levels_); }
  void AddKeyLevel(int level) { AddLevel(level, program_.key_levels); }
  const std::vector<int>& sample_levels() const { return sample_levels_; }

  // How the sites of `level` count at these positions, computed before `reader` where they are asked for first.
  BufferSlice WeightsOf(int position_level, int level, const Layer& reader);

  // Behind all layers: the steps that answer.
  void EmitOutputs();

 private:
  void PushFor(const Layer& layer, std::unique_ptr<Step> step);
  // flags: of the step. tensor: -1 of labels and scores.
  void EmitPointOutput(std::string_view name, int node, Layer flags, int tensor = -1);
  void EmitTensor(int tensor);
  TensorInfo Describe(const std::string& name, const GraphNode& node) const;
  // As TouchNode, for a value that the reader takes out of the network: converted to float32 first where it is not.
  BufferSlice TouchOutput(const Layer& reader, int node);
  static void AddLevel(int level, std::vector<int>& levels);

  // The weights of one level's sites at some positions.
  struct InterpolationWeights {
    BufferSlice slice;
    Step* step = nullptr;  // that makes them
  };

  const Graph& graph_;
  const CompileTarget& target_;
  Layers& layers_;
  BufferLayout& buffers_;
  Program& program_;
  std::map<std::pair<int, int>, InterpolationWeights> weights_of_;  // by positions' level and level
  std::vector<int> sample_levels_;
};

}  // namespace voxserve
