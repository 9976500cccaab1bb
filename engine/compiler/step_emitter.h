#pragma once

// StepEmitter is the interface of the functions that turn layers into steps (operators.h) to the program that is being
// made. It knows where values lie and which rulebooks and levels steps use, and appends steps. It also makes the output
// steps. Used by one thread.

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
  // All arguments outlive the emitter. Emitting moves a layer's weights into its steps.
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
  // Returns the spatial shape of a level. The level must have one.
  const kernels::Axes& ShapeOf(int level) const {
    return *graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape;
  }

  // Return where the value of a layer, or of a node's layer, lies, and extend its buffer's life to the next step.
  BufferSlice Touch(int layer) { return buffers_.Touch(layer); }
  BufferSlice TouchNode(int node) { return buffers_.Touch(layers_.LayerOf(node)); }
  // Does the same as Touch, for an input of the layer's first node.
  BufferSlice TouchInput(int layer, size_t input = 0) { return TouchNode(FirstNode(At(layer)).inputs[input]); }

  // Appends a step of the layer.
  void Push(int layer, std::unique_ptr<Step> step) { PushFor(At(layer), std::move(step)); }
  // Returns the layer's epilogue. Moves the bias out of the layer and counts it as weights.
  FusedEpilogue TakeEpilogue(int layer);
  // Counts the weights of the layer's step, batch norms folded in.
  void CountWeights(int layer, const std::vector<float>& values);

  // Returns the program's index of the rulebook that a convolution or pool reads. conv_index: -1 for a pool.
  template <typename Op>
  int RulebookOf(const Op& op, int conv_index) {
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(op.rulebook)];
    const int searched = FindOrAdd({.spec = spec, .first_conv = conv_index});
    if (!op.is_swapped()) return searched;
    return FindOrAdd({.spec = spec, .swap_of = searched, .first_conv = conv_index});
  }
  int FindOrAdd(const ProgramRulebook& wanted);

  // Record that steps read where each sample's rows begin on a level, or the keys of its sites.
  void AddSampleLevel(int level) { AddLevel(level, sample_levels_); }
  void AddKeyLevel(int level) { AddLevel(level, program_.key_levels); }
  const std::vector<int>& sample_levels() const { return sample_levels_; }

  // Returns the interpolation weights of `level`'s sites at these positions. The first call appends the step that
  // computes them, before the step of `reader`.
  BufferSlice WeightsOf(int position_level, int level, const Layer& reader);

  // Emits the output steps. Call it after all layers were emitted.
  void EmitOutputs();

 private:
  void PushFor(const Layer& layer, std::unique_ptr<Step> step);
  // flags: the layer with the step's flags (is_for_all, ...). tensor: -1 for labels and scores.
  void EmitPointOutput(std::string_view name, int node, Layer flags, int tensor = -1);
  void EmitTensor(int tensor);
  TensorInfo Describe(const std::string& name, const GraphNode& node) const;
  // As TouchNode, for a value that becomes an output. Appends a conversion to float32 where the value has another type.
  BufferSlice TouchOutput(const Layer& reader, int node);
  static void AddLevel(int level, std::vector<int>& levels);

  // The weights of one level's sites at some positions.
  struct InterpolationWeights {
    BufferSlice slice;
    Step* step = nullptr;  // the step that computes them
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
