#include "engine/graph/compiler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/ops/argmax.h"
#include "engine/ops/box_output.h"
#include "engine/ops/broadcast.h"
#include "engine/ops/decode_boxes.h"
#include "engine/ops/devoxelize.h"
#include "engine/ops/global_pool.h"
#include "engine/ops/linear.h"
#include "engine/ops/nms.h"
#include "engine/ops/point_features.h"
#include "engine/ops/point_output.h"
#include "engine/ops/point_to_voxel.h"
#include "engine/ops/pool.h"
#include "engine/ops/sample_norm.h"
#include "engine/ops/scale_shift.h"
#include "engine/ops/sparse_conv.h"
#include "engine/ops/voxelize.h"
#include "kernels/fetch_on_demand.h"

namespace voxserve {
namespace {

constexpr int64_t kRowAlignmentBytes = 16;

// A step in the making: the nodes that one kernel call computes.
struct Layer {
  int first_node = 0;   // where it began; its op decides the kernel
  int result_node = 0;  // the last node absorbed: the layer computes this one's value
  int residual = -1;    // layer whose value is added; -1: none
  std::optional<kernels::Activation> activation;
  bool has_scale = true;     // its kernel can scale what it computes, so that batch norms fold into it
  std::vector<float> scale;  // per output channel, of folded batch norms; empty: 1
  std::vector<float> bias;   // per output channel; empty: 0

  // Where the value lives: -1 in a buffer of its own, else in columns of this layer's (a concatenation's).
  int stored_in = -1;
  int32_t column = 0;

  bool is_for_all = false;
  bool is_for_scores = false;

  // Else nothing of it is computed: its sites alone are of use.
  bool is_wanted() const { return is_for_all || is_for_scores; }
};

// Inputs whose rows it reads. The others, which follow them, say where: the voxelize, or whose sites.
size_t NumInputsRead(const GraphNode& node) {
  if (std::holds_alternative<PointFeaturesOp>(node.op) || std::holds_alternative<VoxelizeOp>(node.op)) return 0;
  const bool has_place = std::holds_alternative<VoxelToPointOp>(node.op) ||
                         std::holds_alternative<PointToVoxelOp>(node.op) ||
                         std::holds_alternative<DevoxelizeOp>(node.op);
  return has_place ? 1 : node.inputs.size();
}

class Compiler {
 public:
  Compiler(const Graph& graph, const Plan& plan, const CompileTarget& target)
      : graph_(graph),
        plan_(plan),
        target_(target),
        label_dtype_(target.bytes_per_label == 1 ? DType::kUint8 : DType::kUint16) {}

  Program Compile() {
    FindRead();
    FindConsumers();
    MakeLayers();
    MarkOutputs();
    PlaceConcats();
    MakeBuffers();
    // Layers of the head come last, so that a step's number is its place in time: buffers live by it.
    for (const bool is_head : {false, true}) {
      for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
        if (At(layer).is_wanted() && IsLast(At(layer).first_node) == is_head) EmitSteps(layer);
      }
    }
    EmitPointOutput(graph_.labels_output, {.is_for_all = true});
    EmitPointOutput(graph_.scores_output, {.is_for_scores = true});
    if (graph_.boxes_output >= 0) {
      const int boxes = LayerOf(graph_.boxes_output);
      Push(At(boxes), std::make_unique<BoxOutputStep>(Touch(boxes)));
    }
    program_.dimension = graph_.dimension;
    program_.voxelize = graph_.voxelize_op();
    program_.levels = graph_.levels.levels();
    program_.default_plans = PlanTable(program_, {{.plan = plan_}});
    program_.allow_tf32 = target_.allow_tf32;
    program_.is_deterministic = target_.is_deterministic;
    program_.num_classes = graph_.num_classes;
    program_.has_labels = graph_.labels_output >= 0;
    program_.has_scores = graph_.scores_output >= 0;
    program_.has_boxes = graph_.boxes_output >= 0;
    program_.has_velocities = graph_.has_velocities;
    program_.label_dtype = label_dtype_;
    return std::move(program_);
  }

 private:
  const GraphNode& Node(int node) const { return graph_.nodes[static_cast<size_t>(node)]; }
  Layer& At(int layer) { return layers_[static_cast<size_t>(layer)]; }
  const GraphNode& FirstNode(const Layer& layer) const { return Node(layer.first_node); }
  int LayerOf(int node) const { return layer_of_[static_cast<size_t>(node)]; }

  bool IsHead(int node) const { return std::holds_alternative<ArgmaxOp>(Node(node).op) || IsPlainOutput(node); }
  // What runs behind all layers.
  bool IsLast(int node) const {
    return IsHead(node) || IsDecoder(Node(node).op) || std::holds_alternative<NmsOp>(Node(node).op);
  }
  // Points get their voxels' rows in the answer alone.
  bool IsPlainOutput(int node) const {
    return std::holds_alternative<VoxelToPointOp>(Node(node).op) && consumers_[static_cast<size_t>(node)].empty();
  }
  bool IsOutput(int node) const {
    return node == graph_.labels_output || node == graph_.scores_output || node == graph_.boxes_output;
  }

  // What the outputs are computed from. A node that others name for its sites or its rulebook alone is none of it: its
  // level is made, and nothing else.
  void FindRead() {
    is_read_.assign(graph_.nodes.size(), false);
    for (const int output : {graph_.labels_output, graph_.scores_output, graph_.boxes_output}) {
      if (output >= 0) is_read_[static_cast<size_t>(output)] = true;
    }
    for (size_t node = graph_.nodes.size(); node-- > 0;) {  // readers stand behind what they read
      if (!is_read_[node]) continue;
      for (const int input : graph_.nodes[node].inputs) is_read_[static_cast<size_t>(input)] = true;
    }
  }

  void FindConsumers() {
    consumers_.resize(graph_.nodes.size());
    for (size_t node = 0; node < graph_.nodes.size(); ++node) {
      if (!is_read_[node]) continue;
      const size_t num_read = NumInputsRead(graph_.nodes[node]);
      for (size_t input = 0; input < num_read; ++input) {
        consumers_[static_cast<size_t>(graph_.nodes[node].inputs[input])].push_back(static_cast<int>(node));
      }
    }
  }

  void MakeLayers() {
    layer_of_.assign(graph_.nodes.size(), -1);
    for (int node = 0; node < static_cast<int>(graph_.nodes.size()); ++node) {
      if (LayerOf(node) >= 0 || !is_read_[static_cast<size_t>(node)]) continue;
      Layer layer{.first_node = node, .result_node = node};
      const GraphOp& op = Node(node).op;
      bool can_absorb = true;
      if (const auto* conv = std::get_if<SparseConvOp>(&op)) {
        if (conv->bias) layer.bias = conv->bias->values;
      } else if (const auto* linear = std::get_if<LinearOp>(&op)) {
        if (linear->bias) layer.bias = linear->bias->values;
      } else if (const auto* norm = std::get_if<BatchNormOp>(&op)) {
        Fold(*norm, layer);
      } else if (const auto* activation = std::get_if<ActivationOp>(&op)) {
        layer.activation = activation->activation;
      } else if (std::holds_alternative<AddOp>(op)) {
        layer.residual = LayerOf(Node(node).inputs[1]);
      } else if (const auto* sample_norm = std::get_if<SampleNormOp>(&op)) {
        if (sample_norm->bias) layer.bias = sample_norm->bias->values;
        layer.has_scale = false;
      } else if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
        layer.has_scale = false;
        can_absorb = broadcast->function != BroadcastOp::Function::kConcat;
      } else if (std::holds_alternative<DevoxelizeOp>(op) || std::holds_alternative<VoxelToPointOp>(op)) {
        layer.has_scale = false;
      } else {
        can_absorb = false;
      }
      if (can_absorb) Absorb(layer);
      for (int absorbed : absorbed_) layer_of_[static_cast<size_t>(absorbed)] = static_cast<int>(layers_.size());
      absorbed_.clear();
      layer_of_[static_cast<size_t>(node)] = static_cast<int>(layers_.size());
      layers_.push_back(std::move(layer));
    }
  }

  // Follows the layer's value for as long as one node alone reads it and the epilogue has room for that node.
  void Absorb(Layer& layer) {
    for (;;) {
      const std::vector<int>& readers = consumers_[static_cast<size_t>(layer.result_node)];
      if (readers.size() != 1 || IsOutput(layer.result_node)) return;
      const int next = readers.front();
      const GraphOp& op = Node(next).op;
      const bool sums_only = layer.residual < 0 && !layer.activation;
      if (const auto* norm = std::get_if<BatchNormOp>(&op); norm != nullptr && sums_only && layer.has_scale) {
        Fold(*norm, layer);
      } else if (std::holds_alternative<AddOp>(op) && sums_only) {
        const std::vector<int>& inputs = Node(next).inputs;
        const int other = LayerOf(inputs[0] == layer.result_node ? inputs[1] : inputs[0]);
        if (other < 0) return;  // not computed yet: its own layer absorbs the addition
        layer.residual = other;
      } else if (const auto* activation = std::get_if<ActivationOp>(&op); activation != nullptr && !layer.activation) {
        layer.activation = activation->activation;
      } else {
        return;
      }
      layer.result_node = next;
      absorbed_.push_back(next);
    }
  }

  // value * scale + bias, then the norm: (value * scale + bias - mean) / deviation * weight + shift.
  static void Fold(const BatchNormOp& norm, Layer& layer) {
    const size_t channels = norm.weight->values.size();
    layer.scale.resize(channels, 1.0f);
    layer.bias.resize(channels, 0.0f);
    for (size_t c = 0; c < channels; ++c) {
      const float factor = static_cast<float>(norm.weight->values[c] /
                                              std::sqrt(double{norm.running_var->values[c]} + double{norm.epsilon}));
      layer.scale[c] *= factor;
      layer.bias[c] = (layer.bias[c] - norm.running_mean->values[c]) * factor + norm.bias->values[c];
    }
  }

  std::vector<int> InputsOf(const Layer& layer) const {
    std::vector<int> inputs;
    const GraphNode& node = FirstNode(layer);
    for (size_t i = 0; i < NumInputsRead(node); ++i) inputs.push_back(LayerOf(node.inputs[i]));
    if (layer.residual >= 0) inputs.push_back(layer.residual);
    return inputs;
  }

  void MarkOutputs() {
    for (const int output : {graph_.labels_output, graph_.boxes_output}) {
      if (output >= 0) At(LayerOf(output)).is_for_all = true;
    }
    if (graph_.scores_output >= 0) At(LayerOf(graph_.scores_output)).is_for_scores = true;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      for (const int input : InputsOf(*layer)) {
        At(input).is_for_all |= layer->is_for_all;
        At(input).is_for_scores |= layer->is_for_scores;
      }
    }
  }

  void PlaceConcats() {
    for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
      if (!At(index).is_wanted() || !std::holds_alternative<ConcatOp>(FirstNode(At(index)).op)) continue;
      // Its inputs are of another type: they are converted as they are copied.
      if (DTypeOf(At(index)) != target_.dtype) continue;
      int32_t column = 0;
      for (const int node : FirstNode(At(index)).inputs) {
        Layer& input = At(LayerOf(node));
        // The voxelize kernel pads its rows itself, so it needs them whole.
        if (input.stored_in < 0 && !std::holds_alternative<VoxelizeOp>(FirstNode(input).op)) {
          input.stored_in = index;
          input.column = column;
        }
        column += Node(node).channels;
      }
    }
  }

  // What the head alone reads leaves the network, and stays float32 whatever the features are.
  DType DTypeOf(const Layer& layer) const {
    const GraphNode& node = Node(layer.result_node);
    if (node.is_labels) return label_dtype_;
    if (node.max_boxes > 0) return DType::kFloat32;
    const std::vector<int>& readers = consumers_[static_cast<size_t>(layer.result_node)];
    const bool head_only = std::all_of(readers.begin(), readers.end(), [this](int reader) { return IsHead(reader); });
    return head_only ? DType::kFloat32 : target_.dtype;
  }

  bool HasBuffer(const Layer& layer) const {
    return layer.is_wanted() && layer.stored_in < 0 && !IsPlainOutput(layer.result_node);
  }

  static int64_t PaddedPitch(int64_t channels, DType dtype) {
    const int64_t alignment = kRowAlignmentBytes / SizeOf(dtype);
    return (channels + alignment - 1) / alignment * alignment;
  }

  void MakeBuffers() {
    buffer_of_.assign(layers_.size(), -1);
    for (size_t index = 0; index < layers_.size(); ++index) {
      if (!HasBuffer(layers_[index])) continue;
      const GraphNode& node = Node(layers_[index].result_node);
      const DType dtype = DTypeOf(layers_[index]);
      buffer_of_[index] = static_cast<int>(program_.buffers.size());
      program_.buffers.push_back({.level = node.level,
                                  .rows_per_sample = node.rows_per_sample(),
                                  .dtype = dtype,
                                  .channels = node.channels,
                                  .pitch = node.is_labels ? node.channels : PaddedPitch(node.channels, dtype),
                                  .first_step = -1,
                                  .last_step = -1});
    }
  }

  // Where a layer's value lies; counts the next step as one that touches it.
  BufferSlice Touch(int index) {
    BufferSlice slice{.channels = Node(At(index).result_node).channels};
    while (At(index).stored_in >= 0) {
      slice.column += At(index).column;
      index = At(index).stored_in;
    }
    slice.buffer = buffer_of_[static_cast<size_t>(index)];
    return Touch(slice);
  }
  BufferSlice Touch(const BufferSlice& slice) {
    Buffer& buffer = program_.buffers[static_cast<size_t>(slice.buffer)];
    const int step = static_cast<int>(program_.steps.size());
    if (buffer.first_step < 0) buffer.first_step = step;
    buffer.last_step = step;
    return slice;
  }

  // As Touch, for a value that the reader takes out of the network: converted to float32 first where it is not.
  BufferSlice TouchOutput(const Layer& reader, int index) {
    const BufferSlice slice = Touch(index);
    const Buffer buffer = program_.buffers[static_cast<size_t>(slice.buffer)];
    if (buffer.dtype != DType::kFloat16 && buffer.dtype != DType::kBfloat16) return slice;
    const int step = static_cast<int>(program_.steps.size());
    const BufferSlice converted{.buffer = static_cast<int>(program_.buffers.size()), .channels = slice.channels};
    program_.buffers.push_back({.level = buffer.level,
                                .rows_per_sample = buffer.rows_per_sample,
                                .channels = slice.channels,
                                .pitch = PaddedPitch(slice.channels, DType::kFloat32),
                                .first_step = step,
                                .last_step = step + 1});
    Push(reader, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = slice, .out = converted}));
    return converted;
  }

  FusedEpilogue TakeEpilogue(Layer& layer) {
    CountWeights(layer.bias);
    FusedEpilogue epilogue{.bias = std::move(layer.bias)};
    if (layer.residual >= 0) epilogue.residual = Touch(layer.residual);
    if (layer.activation) epilogue.activation = *layer.activation;
    return epilogue;
  }

  void CountWeights(const std::vector<float>& values) {
    program_.weight_bytes += static_cast<int64_t>(values.size() * sizeof(float));
  }

  void Push(const Layer& layer, std::unique_ptr<Step> step) {
    step->name = FirstNode(layer).name;
    step->is_for_all = layer.is_for_all;
    step->is_for_scores = layer.is_for_scores;
    program_.steps.push_back(std::move(step));
  }

  void EmitSteps(int index) {
    Layer& layer = At(index);
    const GraphNode& node = FirstNode(layer);
    if (IsDecoder(node.op)) return;  // part of the first nms that reads it
    if (const auto* voxelize = std::get_if<VoxelizeOp>(&node.op)) {
      Push(layer, std::make_unique<VoxelFeaturesStep>(
                      VoxelFeaturesStep::Options{.out = Touch(index),
                                                 .first_column = static_cast<int>(voxelize->axes.size()),
                                                 .reduce = voxelize->reduce,
                                                 .max_points_per_voxel = voxelize->max_points_per_voxel}));
    } else if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) {
      Push(layer, MakeSparseConv(*conv, node, index));
    } else if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
      Push(layer, MakeLinear(*linear, node, index));
    } else if (std::holds_alternative<ConcatOp>(node.op)) {
      EmitConcatCopies(index);
    } else if (const auto* nms = std::get_if<NmsOp>(&node.op)) {
      EmitNms(*nms, index);
    } else if (const auto* global = std::get_if<GlobalPoolOp>(&node.op)) {
      AddSampleLevel(Node(node.inputs[0]).level);
      Push(layer, std::make_unique<GlobalPoolStep>(GlobalPoolStep::Options{
                      .in = Touch(LayerOf(node.inputs[0])), .out = Touch(index), .reduce = global->reduce}));
    } else if (const auto* broadcast = std::get_if<BroadcastOp>(&node.op)) {
      AddSampleLevel(node.level);
      EmitBroadcast(*broadcast, index);
    } else if (const auto* norm = std::get_if<SampleNormOp>(&node.op)) {
      AddSampleLevel(node.level);
      if (norm->weight) CountWeights(norm->weight->values);
      Push(layer, std::make_unique<SampleNormStep>(
                      SampleNormStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                                              .out = Touch(index),
                                              .num_groups = norm->num_groups,
                                              .epsilon = norm->epsilon,
                                              .weight = norm->weight ? norm->weight->values : std::vector<float>(),
                                              .epilogue = TakeEpilogue(layer)}));
    } else if (const auto* pool = std::get_if<PoolOp>(&node.op)) {
      const int rulebook = RulebookOf(*pool, /*conv_index=*/-1);
      program_.rulebooks[static_cast<size_t>(rulebook)].is_pooled = true;
      Push(layer, std::make_unique<PoolStep>(PoolStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                                                               .out = Touch(index),
                                                               .rulebook = rulebook,
                                                               .reduce = pool->reduce}));
    } else if (std::holds_alternative<ArgmaxOp>(node.op)) {
      const BufferSlice in = Touch(LayerOf(node.inputs[0]));
      Push(layer, std::make_unique<ArgmaxStep>(in, Touch(index)));
    } else if (std::holds_alternative<PointFeaturesOp>(node.op)) {
      Push(layer, std::make_unique<PointFeaturesStep>(Touch(index), graph_.dimension));
    } else if (const auto* to_voxel = std::get_if<PointToVoxelOp>(&node.op)) {
      EmitPointToVoxel(*to_voxel, index);
    } else if (std::holds_alternative<DevoxelizeOp>(node.op)) {
      const bool is_of_points = std::holds_alternative<VoxelizeOp>(Node(node.inputs[1]).op);
      const BufferSlice weights = WeightsOf(is_of_points ? kPointLevel : node.level, Node(node.inputs[0]).level, layer);
      PushDevoxelize(index, Touch(weights));
    } else if (std::holds_alternative<VoxelToPointOp>(node.op)) {
      if (!IsPlainOutput(layer.result_node)) PushDevoxelize(index, {});
    } else {  // what is left of batch_norm, activation, add
      CountWeights(layer.scale);
      Push(layer, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                                                                           .out = Touch(index),
                                                                           .scale = std::move(layer.scale),
                                                                           .epilogue = TakeEpilogue(layer)}));
    }
  }

  void EmitPointToVoxel(const PointToVoxelOp& op, int index) {
    const GraphNode& node = FirstNode(At(index));
    const int position_level = Node(node.inputs[0]).level;
    const int key_level = std::max(position_level, 0);  // points are where their voxels are
    if (position_level >= 0 || node.level != 0) {
      AddKeyLevel(key_level);
      AddKeyLevel(node.level);
    }
    Push(At(index), std::make_unique<PointToVoxelStep>(
                        PointToVoxelStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                                                  .out = Touch(index),
                                                  .reduce = op.reduce,
                                                  .dimension = graph_.dimension,
                                                  .position_level = position_level,
                                                  .level = node.level,
                                                  .ratio = *graph_.levels.RatioBetween(key_level, node.level)}));
  }

  // weights: as DevoxelizeStep has them.
  void PushDevoxelize(int index, const BufferSlice& weights) {
    Push(At(index),
         std::make_unique<DevoxelizeStep>(DevoxelizeStep::Options{.in = Touch(LayerOf(FirstNode(At(index)).inputs[0])),
                                                                  .out = Touch(index),
                                                                  .weights = weights,
                                                                  .epilogue = TakeEpilogue(At(index))}));
  }

  // How the sites of `level` count at these positions, computed before `reader` where they are asked for first.
  BufferSlice WeightsOf(int position_level, int level, const Layer& reader) {
    const auto [found, is_new] = weights_of_.try_emplace({position_level, level});
    InterpolationWeights& made = found->second;
    if (is_new) {
      const VoxelizeOp& voxelize = graph_.voxelize_op();
      const bool is_of_points = position_level == kPointLevel;
      AddKeyLevel(is_of_points ? 0 : position_level);
      AddKeyLevel(level);
      made.slice = {.buffer = static_cast<int>(program_.buffers.size()), .channels = 2 << graph_.dimension};
      program_.buffers.push_back({.level = position_level,
                                  .channels = made.slice.channels,
                                  .pitch = made.slice.channels,
                                  .first_step = -1,
                                  .last_step = -1});
      InterpolationWeightsStep::Options options{
          .out = Touch(made.slice),
          .dimension = graph_.dimension,
          .position_level = position_level,
          .level = level,
          .ratio = *graph_.levels.RatioBetween(is_of_points ? 0 : position_level, level),
          .rounding = voxelize.rounding,
          .voxel_size = voxelize.voxel_size};
      if (voxelize.origin == kernels::VoxelOrigin::kRange) options.shift = voxelize.range_min;
      Push(reader, std::make_unique<InterpolationWeightsStep>(options));
      made.step = program_.steps.back().get();
    }
    made.step->is_for_all |= reader.is_for_all;
    made.step->is_for_scores |= reader.is_for_scores;
    return made.slice;
  }

  // flags: of the step. What a voxel_to_point copies is taken from where it copies it.
  void EmitPointOutput(int node, Layer flags) {
    if (node < 0) return;
    flags.first_node = node;
    const bool is_of_voxels = std::holds_alternative<VoxelToPointOp>(Node(node).op);
    const BufferSlice in = TouchOutput(flags, LayerOf(is_of_voxels ? Node(node).inputs[0] : node));
    Push(flags, std::make_unique<PointOutputStep>(in, Node(node).is_labels));
  }

  std::unique_ptr<Step> MakeSparseConv(const SparseConvOp& conv, const GraphNode& node, int index) {
    Layer& layer = At(index);
    std::vector<float> weights = conv.weight->values;
    if (!layer.scale.empty()) {
      for (size_t i = 0; i < weights.size(); ++i) weights[i] *= layer.scale[i % layer.scale.size()];
    }
    const kernels::ConvGeometry& geometry = conv.geometry();
    // One of a single cell that stays on its level maps every site to itself.
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(conv.rulebook)];
    if (spec.in_level == spec.out_level && geometry.NumOffsets() == 1 && geometry.IsSymmetric()) {
      return MakeRowProduct(std::move(weights), node, index);
    }
    CountWeights(weights);
    const int conv_index = static_cast<int>(program_.convs.size());
    program_.convs.push_back({.node = node.name,
                              .step = static_cast<int>(program_.steps.size()),
                              .rulebook = RulebookOf(conv, conv_index),
                              .in_channels = Node(node.inputs[0]).channels,
                              .out_channels = node.channels,
                              .dtype = target_.dtype,
                              .is_on_cuda = target_.on_cuda});
    ProgramConv& made = program_.convs.back();
    if constexpr (kernels::kHasCuda) {
      if (target_.on_cuda) {
        made.fetch_on_demand_rows =
            kernels::cuda::FetchOnDemandTileRows(target_.dtype, made.in_channels, made.out_channels);
      }
    }
    return std::make_unique<SparseConvStep>(
        SparseConvStep::Options{
            .in = Touch(LayerOf(node.inputs[0])),
            .out = Touch(index),
            .conv = conv_index,
            .rulebook = made.rulebook,
            .num_offsets = geometry.NumOffsets(),
            .is_symmetric = geometry.IsSymmetric(),
            .packs_weights = !target_.on_cuda && plan_.ForNode(node.name).dataflow == Dataflow::kFetchOnDemand,
            .epilogue = TakeEpilogue(layer),
            .dtype = target_.dtype},
        std::move(weights));
  }

  std::unique_ptr<Step> MakeLinear(const LinearOp& linear, const GraphNode& node, int index) {
    const Layer& layer = At(index);
    const auto in_channels = static_cast<size_t>(linear.in_channels);
    const auto out_channels = static_cast<size_t>(linear.out_channels);
    std::vector<float> weights(in_channels * out_channels);
    for (size_t o = 0; o < out_channels; ++o) {
      const float scale = layer.scale.empty() ? 1.0f : layer.scale[o];
      for (size_t i = 0; i < in_channels; ++i) {
        weights[i * out_channels + o] = linear.weight->values[o * in_channels + i] * scale;
      }
    }
    return MakeRowProduct(std::move(weights), node, index);
  }

  // weights: [in channels, out channels], scaled.
  std::unique_ptr<Step> MakeRowProduct(std::vector<float> weights, const GraphNode& node, int index) {
    CountWeights(weights);
    const BufferSlice out = Touch(index);
    return std::make_unique<LinearStep>(
        LinearStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                            .out = out,
                            .weights = std::move(weights),
                            .epilogue = TakeEpilogue(At(index)),
                            .dtype = target_.dtype,
                            .out_dtype = program_.buffers[static_cast<size_t>(out.buffer)].dtype});
  }

  // The inputs of a concatenation that were not written in place.
  void EmitConcatCopies(int index) {
    int32_t column = 0;
    for (const int node : FirstNode(At(index)).inputs) {
      const Layer& input = At(LayerOf(node));
      const int32_t channels = Node(node).channels;
      if (input.stored_in != index || input.column != column) {
        ScaleShiftStep::Options copy{.in = Touch(LayerOf(node)), .out = Touch(index)};
        copy.out.column += column;
        copy.out.channels = channels;
        Push(At(index), std::make_unique<ScaleShiftStep>(std::move(copy)));
      }
      column += channels;
    }
  }

  void EmitBroadcast(const BroadcastOp& op, int index) {
    const std::vector<int>& inputs = FirstNode(At(index)).inputs;
    BroadcastStep::Options options{.function = op.function == BroadcastOp::Function::kMultiply
                                                   ? BroadcastStep::Function::kMultiply
                                                   : BroadcastStep::Function::kAdd};
    if (op.function == BroadcastOp::Function::kConcat) {
      ScaleShiftStep::Options copy{.in = Touch(LayerOf(inputs[0])), .out = Touch(index)};
      copy.out.channels = copy.in.channels;
      Push(At(index), std::make_unique<ScaleShiftStep>(std::move(copy)));
      options.function = BroadcastStep::Function::kCopy;
    } else {
      options.sites = Touch(LayerOf(inputs[0]));
    }
    options.samples = Touch(LayerOf(inputs[1]));
    options.out = Touch(index);
    options.out.column += options.out.channels - options.samples.channels;
    options.out.channels = options.samples.channels;
    options.epilogue = TakeEpilogue(At(index));
    Push(At(index), std::make_unique<BroadcastStep>(std::move(options)));
  }

  // CenterPoint's heads are decoded together.
  void EmitNms(const NmsOp& op, int index) {
    const std::vector<int>& inputs = FirstNode(At(index)).inputs;
    const auto is_decoded = [&](int node) {
      const int buffer = buffer_of_[static_cast<size_t>(LayerOf(node))];
      return program_.buffers[static_cast<size_t>(buffer)].first_step >= 0;
    };
    std::vector<DecodeCenterHeadsStep::Head> heads;
    int first_of_heads = -1;
    for (const int node : inputs) {
      const auto* const center = std::get_if<CenterHeadDecodeOp>(&Node(node).op);
      if (center == nullptr || is_decoded(node)) continue;
      if (first_of_heads < 0) first_of_heads = node;
      const std::vector<int>& images = Node(node).inputs;
      const auto touch = [&](size_t image) { return Touch(LayerOf(images[image])); };
      heads.push_back({.parameters = center->head,
                       .images = {.heatmap = touch(0),
                                  .center = touch(1),
                                  .height = touch(2),
                                  .dim = touch(3),
                                  .rot = touch(4),
                                  .vel = center->has_velocity ? touch(5) : BufferSlice()},
                       .out = Touch(LayerOf(node))});
    }
    static_assert(kernels::kMaxNmsInputs <= kernels::kMaxCenterHeads);
    if (!heads.empty()) {
      Push(At(LayerOf(first_of_heads)), std::make_unique<DecodeCenterHeadsStep>(std::move(heads)));
    }
    for (const int node : inputs) {
      const auto* const anchors = std::get_if<AnchorHeadDecodeOp>(&Node(node).op);
      if (anchors == nullptr || is_decoded(node)) continue;
      const std::vector<int>& images = Node(node).inputs;
      Push(At(LayerOf(node)),
           std::make_unique<DecodeAnchorHeadStep>(DecodeAnchorHeadStep::Options{.parameters = anchors->head,
                                                                                .scores = Touch(LayerOf(images[0])),
                                                                                .residuals = Touch(LayerOf(images[1])),
                                                                                .directions = Touch(LayerOf(images[2])),
                                                                                .out = Touch(LayerOf(node))}));
    }
    NmsStep::Options options{.out = Touch(index),
                             .iou_threshold = op.iou_threshold,
                             .max_boxes_in = op.max_boxes_in,
                             .max_boxes_out = op.max_boxes_out};
    for (const int node : inputs) options.in.push_back(Touch(LayerOf(node)));
    Push(At(index), std::make_unique<NmsStep>(std::move(options)));
  }

  void AddSampleLevel(int level) { AddLevel(level, program_.sample_levels); }
  void AddKeyLevel(int level) { AddLevel(level, program_.key_levels); }
  static void AddLevel(int level, std::vector<int>& levels) {
    if (std::find(levels.begin(), levels.end(), level) == levels.end()) levels.push_back(level);
  }

  // conv_index: -1 for a pool's.
  template <typename Op>
  int RulebookOf(const Op& op, int conv_index) {
    const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(op.rulebook)];
    const int searched = FindOrAdd({.spec = spec, .first_conv = conv_index});
    if (!op.is_swapped()) return searched;
    return FindOrAdd({.spec = spec, .swap_of = searched, .first_conv = conv_index});
  }

  int FindOrAdd(const ProgramRulebook& wanted) {
    std::vector<ProgramRulebook>& rulebooks = program_.rulebooks;
    const auto found = std::find_if(rulebooks.begin(), rulebooks.end(), [&](const ProgramRulebook& rulebook) {
      return rulebook.spec == wanted.spec && rulebook.swap_of == wanted.swap_of;
    });
    if (found != rulebooks.end()) {
      if (found->first_conv < 0) found->first_conv = wanted.first_conv;
      return static_cast<int>(found - rulebooks.begin());
    }
    rulebooks.push_back(wanted);
    return static_cast<int>(rulebooks.size()) - 1;
  }

  // Of one level at some positions.
  struct InterpolationWeights {
    BufferSlice slice;
    Step* step = nullptr;  // that makes them
  };

  const Graph& graph_;
  const Plan& plan_;
  const CompileTarget target_;
  const DType label_dtype_;
  Program program_;
  std::vector<bool> is_read_;                                       // by node
  std::vector<std::vector<int>> consumers_;                         // by node, of those that are read
  std::vector<Layer> layers_;                                       // in the order in which they run
  std::vector<int> layer_of_;                                       // by node; -1: not made yet, or never read
  std::vector<int> absorbed_;                                       // nodes of the layer in the making
  std::vector<int> buffer_of_;                                      // by layer; -1: none of its own
  std::map<std::pair<int, int>, InterpolationWeights> weights_of_;  // by positions' level and level
};

}  // namespace

Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target) {
  return Compiler(graph, plan, target).Compile();
}

}  // namespace voxserve
