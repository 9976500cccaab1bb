#pragma once

// The functions that turn layers into steps (operators.h) write to the program through a StepEmitter. It appends steps,
// knows in which buffer each value lies, and records which rulebooks and levels the steps use. It also makes the output
// steps. The compiler makes one StepEmitter for each program and uses it in one thread.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/compiler/buffer_layout.h"
#include "engine/compiler/compiler.h"
#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"
#include "engine/model/image_windows.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/step.h"

namespace voxserve {

class StepEmitter {
 public:
  // All arguments outlive the emitter. Emitting moves a layer's weights into its steps.
  StepEmitter(const CompileTarget& target, const Int8Types& int8_types, Layers& layers, BufferLayout& buffers,
              Program& program)
      : graph_(layers.graph()),
        target_(target),
        int8_types_(int8_types),
        layers_(layers),
        buffers_(buffers),
        program_(program),
        image_windows_(FindImageWindows(graph_)) {}

  const Graph& graph() const { return graph_; }
  const CompileTarget& target() const { return target_; }
  const Int8Types& int8_types() const { return int8_types_; }
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

  // Return the grid to which a to_dense of the level copies its sites, and how many of the grid's cells are neighbours
  // in a row of the result.
  kernels::SiteGrid SiteGridOf(const ToDenseOp& op, int level) const;
  int32_t DepthOf(const ToDenseOp& op, int level) const { return op.is_from_above ? ShapeOf(level)[2] : 1; }

  DType DTypeOf(const BufferSlice& slice) const { return program_.buffers[static_cast<size_t>(slice.buffer)].dtype; }

  // Appends the steps that convert those of the layer's inputs that it reads in another type than they are stored in:
  // positions (Layers::IsPosition) to the features' type, values to 8 bits, and values in 8 bits to floats. EmitLayer
  // calls it first, since the life of a buffer is a range of steps.
  void ConvertInputs(const Layer& layer);

  // Each returns where the value of a layer, or of a node's layer, lies, and extends the life of its buffer to the step
  // that is pushed next.
  BufferSlice UseBuffer(int layer) { return buffers_.UseBuffer(layer); }
  BufferSlice UseNodeBuffer(int node) { return buffers_.UseBuffer(layers_.LayerOf(node)); }
  // Does the same as UseNodeBuffer, for a node that `reader` reads: the value that ConvertInputs has converted, if any.
  BufferSlice UseBufferFor(int reader, int node);
  // Does the same as UseBufferFor, for an input of the layer's first node.
  BufferSlice UseInputBuffer(int layer, size_t input = 0) {
    return UseBufferFor(At(layer).first_node, FirstNode(At(layer)).inputs[input]);
  }

  // Appends a step of the layer.
  void Push(int layer, std::unique_ptr<Step> step) { PushFor(At(layer), std::move(step)); }
  // Returns the layer's epilogue. Moves the bias out of the layer and counts it as weights.
  FusedEpilogue TakeEpilogue(int layer);
  // Adds the weights of the layer's step, with batch norms folded in, to Program::weight_bytes, and checks them.
  void CountWeights(int layer, const std::vector<float>& values) {
    CountWeightBytes(values.size() * sizeof(float));
    CheckWeights(layer, values);
  }
  // Returns the values of a tensor, and counts them as weights of the layer's step. Returns an empty vector if there is
  // no tensor.
  std::vector<float> Counted(int layer, const HostTensorPtr& tensor) {
    if (tensor == nullptr) return {};
    CountWeights(layer, tensor->values);
    return tensor->values;
  }
  // Adds to Program::weight_bytes what a step stores in another form than CountWeights counts.
  void CountWeightBytes(size_t bytes) { program_.weight_bytes += static_cast<int64_t>(bytes); }
  // Sets Program::overflowing_step if a weight of the layer's step is not finite.
  void CheckWeights(int layer, const std::vector<float>& values);

  // Returns the program's index of the rulebook that a convolution or pool reads. conv_index: -1 for a pool.
  template <typename Op>
  int RulebookOf(const Op& op, int conv_index) {
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(op.rulebook)];
    const int searched = FindOrAdd({.spec = spec, .first_conv = conv_index});
    if (!op.is_swapped()) return searched;
    return FindOrAdd({.spec = spec, .swap_of = searched, .first_conv = conv_index});
  }
  int FindOrAdd(const ProgramRulebook& wanted);
  // Returns the program's index of an order.
  int OrderOf(const SiteOrderSpec& spec);

  // AddSampleLevel records that steps read where each sample's rows begin on a level; AddKeyLevel records that steps
  // read the keys of its sites.
  void AddSampleLevel(int level) { AddLevel(level, sample_levels_); }
  void AddKeyLevel(int level) { AddLevel(level, program_.key_levels); }
  const std::vector<int>& sample_levels() const { return sample_levels_; }

  // Returns the weights for interpolating between `level`'s sites at the positions of the rows of position_level
  // (kPointLevel: the points). The first call for the two levels appends the step that computes the weights, so call it
  // before the step of `reader` is pushed.
  BufferSlice WeightsOf(int position_level, int level, const Layer& reader);

  // Returns the table of the angles by which the rotary of this node rotates, and extends its life to the step that is
  // pushed next. The first call for angles of the same positions, number and base appends the step that computes them.
  // pairs: in the chunk of an axis. Call it before the step of `reader` is pushed.
  BufferSlice AnglesOf(int rotary, int pairs, const Layer& reader);

  // Lists the boxes of a convolution of images that depend on sites, if that is possible, and extends the life of the
  // list to the step that is pushed next. The first call for the sites of a to_dense appends the step that makes the
  // lists. Call it before the step of the layer is pushed.
  Conv2dStep::Options::ActiveBoxes ActiveBoxesOf(int layer, const kernels::Conv2dGeometry& geometry,
                                                 int32_t in_channels);

  // Emits the output steps. Call it after all layers were emitted.
  void EmitOutputs();

 private:
  void PushFor(const Layer& layer, std::unique_ptr<Step> step);
  // flags: the layer with the step's flags (is_for_all, ...). tensor: -1 for labels and scores.
  void EmitPointOutput(std::string_view name, int node, Layer flags, int tensor = -1);
  void EmitTensor(int tensor);
  TensorInfo Describe(const std::string& name, const GraphNode& node) const;
  // Does the same as UseNodeBuffer, for a value that becomes an output. If the value is float16 or bfloat16, appends a
  // step that converts it to float32, and returns the result of the conversion.
  BufferSlice TouchOutput(const Layer& reader, int node);
  static void AddLevel(int level, std::vector<int>& levels);

  // A value that belongs to no layer and that several layers read.
  struct SharedValue {
    BufferSlice slice;
    Step* step = nullptr;  // the step that computes it

    // Lets the step run in every batch in which the reader runs.
    void AddReader(const Layer& reader) const;
  };

  // Returns the type in which `reader` reads the value of its input `node`.
  DType ReadType(int reader, int node) const;
  // Returns the type in which a layer reads its residual.
  DType AddedType(const Layer& reader, int layer) const;
  // Appends a step that converts the layer's value, unless it is stored in this type or was converted before.
  void Convert(int layer, DType dtype, const Layer& reader);
  // Returns where the layer's value lies in this type, and extends the life of its buffer.
  BufferSlice UseAs(int layer, DType dtype);

  const Graph& graph_;
  const CompileTarget& target_;
  const Int8Types& int8_types_;
  Layers& layers_;
  BufferLayout& buffers_;
  Program& program_;
  std::map<std::pair<int, int>, SharedValue> weights_of_;   // by positions' level and level
  std::map<std::pair<int, DType>, SharedValue> converted_;  // by layer and type
  // By level, layer of the positions (-1: they are coordinates), pairs and base.
  std::map<std::tuple<int, int, int, float>, SharedValue> angles_of_;
  const std::vector<std::optional<ImageWindows>> image_windows_;  // by node
  std::map<int, SharedValue> active_boxes_;                       // by node of the to_dense
  std::vector<int> sample_levels_;
};

}  // namespace voxserve
