#include "engine/graph/compiler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "engine/ops/argmax.h"
#include "engine/ops/box_output.h"
#include "engine/ops/broadcast.h"
#include "engine/ops/global_pool.h"
#include "engine/ops/linear.h"
#include "engine/ops/pool.h"
#include "engine/ops/sample_norm.h"
#include "engine/ops/scale_shift.h"
#include "engine/ops/sparse_conv.h"
#include "engine/ops/voxel_to_point.h"
#include "engine/ops/voxelize.h"
#include "kernels/fetch_on_demand.h"

namespace voxserve {
namespace {

constexpr int64_t kRowAlignmentBytes = 16;

// A step in the making: the nodes that one kernel call computes.
struct Layer {
  int first_node = 0;     // where it began; its op decides the kernel
  int result_node = 0;    // the last node absorbed: the layer computes this one's value
  int residual = -1;      // layer whose value is added; -1: none
  bool is_union = false;  // of an addition: it brings both inputs to their union, and adds no other
  std::optional<kernels::Activation> activation;
  bool has_scale = true;     // its kernel can scale what it computes, so that batch norms fold into it
  std::vector<float> scale;  // per output channel, of folded batch norms; empty: 1
  std::vector<float> bias;   // per output channel; empty: 0

  // Where the value lives: -1 in a buffer of its own, else in columns of this layer's (a concatenation's).
  int stored_in = -1;
  int32_t column = 0;

  int segment = 0;
  bool is_for_all = false;
  bool is_for_scores = false;
};

class Compiler {
 public:
  Compiler(const Graph& graph, const Plan& plan, const CompileTarget& target)
      : graph_(graph),
        plan_(plan),
        target_(target),
        label_dtype_(target.bytes_per_label == 1 ? DType::kUint8 : DType::kUint16) {}

  Program Compile() {
    FindConsumers();
    MakeLayers();
    MarkOutputs();
    MakeSegments();
    PlaceConcats();
    MakeBuffers();
    // Segment by segment, layers of the head last, so that a step's number is its place in time: buffers live by it.
    const int num_segments = static_cast<int>(program_.segments.size());
    for (int segment = 0; segment < num_segments; ++segment) {
      program_.segments[static_cast<size_t>(segment)].first_step = static_cast<int>(program_.steps.size());
      EmitLayers([&](const Layer& layer) { return !IsHead(layer) && layer.segment == segment; });
      TouchScores(segment + 1);
      program_.segments[static_cast<size_t>(segment)].end_step = static_cast<int>(program_.steps.size());
    }
    EmitLayers([this](const Layer& layer) { return IsHead(layer); });
    if (graph_.boxes_output >= 0) {
      const int boxes = LayerOf(graph_.boxes_output);
      Push(At(boxes), std::make_unique<BoxOutputStep>(Touch(boxes)));
    }
    program_.segments.back().end_step = static_cast<int>(program_.steps.size());
    FillSegments();
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

  bool IsHead(const Layer& layer) const {
    const GraphOp& op = FirstNode(layer).op;
    return std::holds_alternative<ArgmaxOp>(op) || std::holds_alternative<VoxelToPointOp>(op);
  }

  void FindConsumers() {
    consumers_.resize(graph_.nodes.size());
    for (size_t node = 0; node < graph_.nodes.size(); ++node) {
      for (const int input : graph_.nodes[node].inputs) {
        consumers_[static_cast<size_t>(input)].push_back(static_cast<int>(node));
      }
    }
  }

  void MakeLayers() {
    layer_of_.assign(graph_.nodes.size(), -1);
    for (int node = 0; node < static_cast<int>(graph_.nodes.size()); ++node) {
      if (LayerOf(node) >= 0) continue;
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
      } else if (const auto* add = std::get_if<AddOp>(&op)) {
        layer.is_union = !add->rulebooks.empty();
        if (!layer.is_union) layer.residual = LayerOf(Node(node).inputs[1]);
      } else if (const auto* sample_norm = std::get_if<SampleNormOp>(&op)) {
        if (sample_norm->bias) layer.bias = sample_norm->bias->values;
        layer.has_scale = false;
      } else if (const auto* broadcast = std::get_if<BroadcastOp>(&op)) {
        layer.has_scale = false;
        can_absorb = broadcast->function != BroadcastOp::Function::kConcat;
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
      if (readers.size() != 1) return;
      const int next = readers.front();
      const GraphOp& op = Node(next).op;
      const bool sums_only = layer.residual < 0 && !layer.is_union && !layer.activation;
      if (const auto* norm = std::get_if<BatchNormOp>(&op); norm != nullptr && sums_only && layer.has_scale) {
        Fold(*norm, layer);
      } else if (const auto* add = std::get_if<AddOp>(&op); add != nullptr && add->rulebooks.empty() && sums_only) {
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
    for (const int node : FirstNode(layer).inputs) inputs.push_back(LayerOf(node));
    if (layer.residual >= 0) inputs.push_back(layer.residual);
    return inputs;
  }

  void MarkOutputs() {
    for (const int output : {graph_.labels_output, graph_.boxes_output}) {
      if (output >= 0) At(LayerOf(output)).is_for_all = true;
    }
    if (graph_.scores_output >= 0) At(LayerOf(graph_.scores_output)).is_for_scores = true;
    for (const CoordinateLevel& level : graph_.levels.levels()) {
      if (ScoreOf(level) >= 0) At(ScoreOf(level)).is_for_all = true;
    }
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      for (const int input : InputsOf(*layer)) {
        At(input).is_for_all |= layer->is_for_all;
        At(input).is_for_scores |= layer->is_for_scores;
      }
    }
  }

  // The layer whose scores decide about a level's sites; -1: none.
  int ScoreOf(const CoordinateLevel& level) const {
    return level.filter && level.filter->score_node >= 0 ? LayerOf(level.filter->score_node) : -1;
  }

  // A level is made in the segment of its parents, or behind that of the scores that decide about it; a layer runs
  // where its level and its inputs are there.
  void MakeSegments() {
    const std::vector<CoordinateLevel>& levels = graph_.levels.levels();
    level_segment_.assign(levels.size(), 0);
    const auto of_level = [this](int level) { return level < 0 ? 0 : level_segment_[static_cast<size_t>(level)]; };
    // A level is older than the layers on it, and younger than those whose scores decide about it.
    size_t num_placed = 1;
    const auto place_levels = [&](size_t end) {
      for (; num_placed < end; ++num_placed) {
        const CoordinateLevel& level = levels[num_placed];
        int& segment = level_segment_[num_placed];
        segment = std::max(of_level(level.parent), of_level(level.united_with));
        if (const int score = ScoreOf(level); score >= 0) segment = std::max(segment, At(score).segment + 1);
      }
    };
    for (Layer& layer : layers_) {
      const int level = std::max(Node(layer.result_node).level, 0);
      place_levels(static_cast<size_t>(level + 1));
      layer.segment = of_level(level);
      for (const int input : InputsOf(layer)) layer.segment = std::max(layer.segment, At(input).segment);
    }
    place_levels(levels.size());
    program_.segments.resize(static_cast<size_t>(*std::max_element(level_segment_.begin(), level_segment_.end())) + 1);
    program_.scores.resize(levels.size());
  }

  // The scores that decide about the levels of a segment live until its levels are made.
  void TouchScores(int segment) {
    const std::vector<CoordinateLevel>& levels = graph_.levels.levels();
    for (size_t level = 0; level < levels.size(); ++level) {
      const int score = ScoreOf(levels[level]);
      if (score >= 0 && level_segment_[level] == segment) program_.scores[level] = Touch(score);
    }
  }

  void FillSegments() {
    const auto segment_of = [this](int level) -> ProgramSegment& {
      return program_.segments[static_cast<size_t>(level_segment_[static_cast<size_t>(level)])];
    };
    for (size_t level = 1; level < level_segment_.size(); ++level) {
      segment_of(static_cast<int>(level)).levels.push_back(static_cast<int>(level));
    }
    for (size_t i = 0; i < program_.rulebooks.size(); ++i) {
      const RulebookSpec& spec = program_.rulebooks[i].spec;
      ProgramSegment& in = segment_of(spec.in_level);
      ProgramSegment& out = segment_of(spec.out_level);
      std::max(&in, &out)->rulebooks.push_back(static_cast<int>(i));
    }
    for (const int level : sample_levels_) segment_of(level).sample_levels.push_back(level);
  }

  template <typename Predicate>
  void EmitLayers(const Predicate& is_wanted) {
    for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
      if (is_wanted(At(layer))) EmitSteps(layer);
    }
  }

  void PlaceConcats() {
    for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
      if (!std::holds_alternative<ConcatOp>(FirstNode(At(index)).op)) continue;
      // Its inputs are of another type: they are converted as they are copied.
      if (DTypeOf(At(index)) != target_.dtype) continue;
      int32_t column = 0;
      for (const int node : FirstNode(At(index)).inputs) {
        Layer& input = At(LayerOf(node));
        // The voxelize kernel pads its rows itself, so it needs them whole.
        if (input.stored_in < 0 && !std::holds_alternative<VoxelizeOp>(FirstNode(input).op) &&
            Node(node).HasRowsOf(FirstNode(At(index)))) {
          input.stored_in = index;
          input.column = column;
        }
        column += Node(node).channels;
      }
    }
  }

  // What the head alone reads leaves the network, and stays float32 whatever the features are; so do scores.
  DType DTypeOf(const Layer& layer) const {
    const GraphNode& node = Node(layer.result_node);
    if (node.is_labels) return label_dtype_;
    const std::vector<int>& readers = consumers_[static_cast<size_t>(layer.result_node)];
    const bool head_only = std::all_of(readers.begin(), readers.end(), [&](int reader) {
      const GraphOp& op = Node(reader).op;
      // Scores are only compared.
      if (std::holds_alternative<PruneOp>(op)) return Node(reader).inputs[0] != layer.result_node;
      return std::holds_alternative<ArgmaxOp>(op) || std::holds_alternative<VoxelToPointOp>(op);
    });
    return head_only ? DType::kFloat32 : target_.dtype;
  }

  bool HasBuffer(const Layer& layer) const { return !Node(layer.result_node).is_per_point && layer.stored_in < 0; }

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
    if (std::holds_alternative<FarthestPointSampleOp>(node.op)) return;  // part of the geometry pass
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
    } else if (const auto* crop = std::get_if<CropOp>(&node.op)) {
      EmitSameSites(layer, crop->rulebook, Touch(LayerOf(node.inputs[0])), Touch(index));
    } else if (const auto* prune = std::get_if<PruneOp>(&node.op)) {
      EmitSameSites(layer, prune->rulebook, Touch(LayerOf(node.inputs[0])), Touch(index));
    } else if (layer.is_union) {
      EmitUnionAdd(index);
    } else if (std::holds_alternative<ArgmaxOp>(node.op)) {
      const BufferSlice in = Touch(LayerOf(node.inputs[0]));
      Push(layer, std::make_unique<ArgmaxStep>(in, Touch(index)));
    } else if (std::holds_alternative<VoxelToPointOp>(node.op)) {
      Push(layer, std::make_unique<VoxelToPointStep>(TouchOutput(layer, LayerOf(node.inputs[0])), node.is_labels));
    } else {  // what is left of batch_norm, activation, add
      CountWeights(layer.scale);
      Push(layer, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = Touch(LayerOf(node.inputs[0])),
                                                                           .out = Touch(index),
                                                                           .scale = std::move(layer.scale),
                                                                           .epilogue = TakeEpilogue(layer)}));
    }
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
    const GraphNode& concat = FirstNode(At(index));
    const std::vector<int>& rulebooks = std::get<ConcatOp>(concat.op).rulebooks;
    int32_t column = 0;
    for (size_t i = 0; i < concat.inputs.size(); ++i) {
      const int node = concat.inputs[i];
      const Layer& input = At(LayerOf(node));
      const int32_t channels = Node(node).channels;
      if (input.stored_in != index || input.column != column) {
        ScaleShiftStep::Options copy{.in = Touch(LayerOf(node)), .out = Touch(index)};
        copy.out.column += column;
        copy.out.channels = channels;
        if (Node(node).HasRowsOf(concat)) {
          Push(At(index), std::make_unique<ScaleShiftStep>(std::move(copy)));
        } else {
          EmitSameSites(At(index), rulebooks[i], copy.in, copy.out);
        }
      }
      column += channels;
    }
  }

  // Every site of `out` gets its row of `in`, or 0 where there is none: the sum over one cell.
  void EmitSameSites(const Layer& layer, int rulebook, const BufferSlice& in, const BufferSlice& out) {
    const int walked = FindOrAdd({.spec = graph_.levels.rulebooks()[static_cast<size_t>(rulebook)], .first_conv = -1});
    program_.rulebooks[static_cast<size_t>(walked)].is_pooled = true;
    Push(layer, std::make_unique<PoolStep>(
                    PoolStep::Options{.in = in, .out = out, .rulebook = walked, .reduce = kernels::PoolReduce::kSum}));
  }

  void EmitUnionAdd(int index) {
    const GraphNode& add = FirstNode(At(index));
    BufferSlice sides[2];
    for (size_t i = 0; i < 2; ++i) {
      const int side = LayerOf(add.inputs[i]);
      if (Node(add.inputs[i]).HasRowsOf(add)) continue;
      const BufferSlice in = Touch(side);
      sides[i] = {.buffer = static_cast<int>(program_.buffers.size()), .channels = in.channels};
      Buffer moved = program_.buffers[static_cast<size_t>(in.buffer)];
      moved.level = add.level;
      moved.channels = in.channels;
      moved.pitch = PaddedPitch(in.channels, moved.dtype);
      moved.first_step = static_cast<int>(program_.steps.size());
      program_.buffers.push_back(moved);
      EmitSameSites(At(index), std::get<AddOp>(add.op).rulebooks[i], in, sides[i]);
    }
    for (size_t i = 0; i < 2; ++i) {
      if (sides[i].buffer < 0) sides[i] = Touch(LayerOf(add.inputs[i]));
      program_.buffers[static_cast<size_t>(sides[i].buffer)].last_step = static_cast<int>(program_.steps.size());
    }
    FusedEpilogue epilogue = TakeEpilogue(At(index));
    epilogue.residual = sides[1];
    Push(At(index), std::make_unique<ScaleShiftStep>(
                        ScaleShiftStep::Options{.in = sides[0], .out = Touch(index), .epilogue = std::move(epilogue)}));
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

  void AddSampleLevel(int level) {
    if (std::find(sample_levels_.begin(), sample_levels_.end(), level) == sample_levels_.end()) {
      sample_levels_.push_back(level);
    }
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

  const Graph& graph_;
  const Plan& plan_;
  const CompileTarget target_;
  const DType label_dtype_;
  Program program_;
  std::vector<std::vector<int>> consumers_;  // by node
  std::vector<Layer> layers_;                // in the order in which they run
  std::vector<int> layer_of_;                // by node; -1: not made yet
  std::vector<int> absorbed_;                // nodes of the layer in the making
  std::vector<int> buffer_of_;               // by layer; -1: none of its own
  std::vector<int> level_segment_;           // by level
  std::vector<int> sample_levels_;           // whose samples' first rows are asked for
};

}  // namespace

Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target) {
  return Compiler(graph, plan, target).Compile();
}

}  // namespace voxserve
