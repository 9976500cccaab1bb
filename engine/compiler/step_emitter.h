#pragma once

// Layer -> steps: what the compiler makes of each operator. A branch for every operator is in EmitLayer; of kinds that
// take more than that, product_steps.cc has the matrix products and convolutions, point_steps.cc what moves between
// points and sites, box_steps.cc detection.

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/compiler/buffer_layout.h"
#include "engine/compiler/compiler.h"
#include "engine/compiler/layers.h"
#include "engine/compiler/plan.h"
#include "engine/compiler/program.h"
#include "engine/ops/step.h"

namespace voxserve {

class StepEmitter {
 public:
  // All outlive the emitter. What a layer's steps need is moved out of it.
  StepEmitter(const Plan& plan, const CompileTarget& target, Layers& layers, BufferLayout& buffers, Program& program)
      : graph_(layers.graph()), plan_(plan), target_(target), layers_(layers), buffers_(buffers), program_(program) {}

  // Appends the layer's steps to the program, with the rulebooks, convolutions and key levels that they use, and counts
  // their weights. In the order in which steps run.
  void EmitLayer(int index);
  // Behind all layers: the steps that answer.
  void EmitOutputs();

  // Levels whose steps ask where each sample's rows begin.
  const std::vector<int>& sample_levels() const { return sample_levels_; }

 private:
  const GraphNode& Node(int node) const { return layers_.Node(node); }
  Layer& At(int layer) { return layers_.At(layer); }
  const GraphNode& FirstNode(const Layer& layer) const { return layers_.FirstNode(layer); }

  // Where the value lies of a layer, or of the layer that computes a node; counts the next step as one that touches it.
  BufferSlice Touch(int layer) { return buffers_.Touch(layer); }
  BufferSlice TouchNode(int node) { return buffers_.Touch(layers_.LayerOf(node)); }
  // Of an input of the node with which the layer begins.
  BufferSlice TouchInput(int layer, size_t input = 0) { return TouchNode(FirstNode(At(layer)).inputs[input]); }
  // As TouchNode, for a value that the reader takes out of the network: converted to float32 first where it is not.
  BufferSlice TouchOutput(const Layer& reader, int node);

  void Push(const Layer& layer, std::unique_ptr<Step> step);
  FusedEpilogue TakeEpilogue(Layer& layer);
  void CountWeights(const std::vector<float>& values);

  void EmitPointOutput(std::string_view name, int node, Layer flags);  // flags: of the step
  void EmitToDense(const ToDenseOp& op, int index);
  void EmitFromDense(int index);
  void EmitConcatCopies(int index);
  void EmitUnionAdd(int index);
  void EmitBroadcast(const BroadcastOp& op, int index);
  void EmitSampleNorm(const SampleNormOp& op, int index);
  // Every site of `out` gets its row of `in`, or 0 where there is none: the sum over one cell.
  void EmitSameSites(const Layer& layer, int rulebook, const BufferSlice& in, const BufferSlice& out);

  // product_steps.cc
  void EmitSparseConv(const SparseConvOp& conv, int index);
  void EmitLinear(const LinearOp& linear, int index);
  void EmitConv2d(const Conv2dOp& conv, int index);
  // weights: [in channels, out channels], scaled.
  void EmitRowProduct(std::vector<float> weights, int index);

  // point_steps.cc
  void EmitPointToVoxel(const PointToVoxelOp& op, int index);
  void EmitDevoxelize(int index);
  // weights: as DevoxelizeStep has them.
  void PushDevoxelize(int index, const BufferSlice& weights);
  // How the sites of `level` count at these positions, computed before `reader` where they are asked for first.
  BufferSlice WeightsOf(int position_level, int level, const Layer& reader);

  // box_steps.cc
  void EmitNms(const NmsOp& op, int index);
  // Of what feeds an nms and is not decoded yet.
  void EmitCenterHeads(const std::vector<int>& decoders);
  void EmitAnchorHead(const AnchorHeadDecodeOp& op, int node);

  void AddSampleLevel(int level) { AddLevel(level, sample_levels_); }
  void AddKeyLevel(int level) { AddLevel(level, program_.key_levels); }
  static void AddLevel(int level, std::vector<int>& levels);

  // conv_index: -1 for a pool's.
  template <typename Op>
  int RulebookOf(const Op& op, int conv_index) {
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(op.rulebook)];
    const int searched = FindOrAdd({.spec = spec, .first_conv = conv_index});
    if (!op.is_swapped()) return searched;
    return FindOrAdd({.spec = spec, .swap_of = searched, .first_conv = conv_index});
  }
  int FindOrAdd(const ProgramRulebook& wanted);

  // Of one level at some positions.
  struct InterpolationWeights {
    BufferSlice slice;
    Step* step = nullptr;  // that makes them
  };

  const Graph& graph_;
  const Plan& plan_;
  const CompileTarget& target_;
  Layers& layers_;
  BufferLayout& buffers_;
  Program& program_;
  std::map<std::pair<int, int>, InterpolationWeights> weights_of_;  // by positions' level and level
  std::vector<int> sample_levels_;
};

}  // namespace voxserve
