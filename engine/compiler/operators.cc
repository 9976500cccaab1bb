#include "engine/compiler/operators.h"

#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/compiler/step_emitter.h"
#include "engine/compiler/steps.h"
#include "engine/ops/boxes/gather.h"
#include "engine/ops/boxes/query_decode.h"
#include "engine/ops/boxes/select.h"
#include "engine/ops/image/from_dense.h"
#include "engine/ops/image/max_pool2d.h"
#include "engine/ops/image/to_dense.h"
#include "engine/ops/points/point_features.h"
#include "engine/ops/points/site_position.h"
#include "engine/ops/points/voxelize.h"
#include "engine/ops/rows/attention.h"
#include "engine/ops/rows/broadcast.h"
#include "engine/ops/rows/elementwise.h"
#include "engine/ops/rows/embedding.h"
#include "engine/ops/rows/global_pool.h"
#include "engine/ops/rows/group_attention.h"
#include "engine/ops/rows/pool.h"
#include "engine/ops/rows/prelu.h"
#include "engine/ops/rows/rotary.h"
#include "engine/ops/rows/sample_norm.h"
#include "engine/ops/rows/sample_rows.h"
#include "engine/ops/rows/scale_shift.h"
#include "engine/ops/rows/site_coordinates.h"

namespace voxserve {
namespace {

template <typename Op, typename... Ops>
concept OneOf = (std::is_same_v<Op, Ops> || ...);

// Operators on rows that are always steps of their own: no operator is fused into them, and they are fused into no
// step.
template <typename Op>
concept OfRows = OneOf<Op, ElementwiseOp, RowNormOp, PReluOp, EmbeddingOp>;

// Operators on the queries of a select.
template <typename Op>
concept OfQueries = OneOf<Op, SelectOp, GatherOp, QueryDecodeOp>;

// Reading.

struct InputsRead {
  const GraphNode& node;

  size_t operator()(const OneOf<FarthestPointSampleOp, VoxelizeOp, PointFeaturesOp, PointOffsetsOp, SiteCoordinatesOp,
                                GroupsOp> auto&) const {
    return 0;
  }
  size_t operator()(const OneOf<VoxelToPointOp, DevoxelizeOp> auto&) const { return 1; }
  size_t operator()(const PointToVoxelOp& op) const { return op.has_empty_slots ? 2 : 1; }
  size_t operator()(const OneOf<SparseConvOp, BatchNormOp, LinearOp, ActivationOp, AddOp, ConcatOp, ArgmaxOp, PoolOp,
                                GlobalPoolOp, BroadcastOp, SampleNormOp, ToDenseOp, FromDenseOp, Conv2dOp, MaxPool2dOp,
                                CropOp, PruneOp, CenterHeadDecodeOp, AnchorHeadDecodeOp, NmsOp> auto&) const {
    return node.inputs.size();
  }
  size_t operator()(const OneOf<SampleRowsOp, AttentionOp> auto&) const { return node.inputs.size(); }
  size_t operator()(const RotaryOp&) const { return node.inputs.size(); }
  size_t operator()(const SitePositionOp&) const { return 0; }
  size_t operator()(const OfRows auto&) const { return node.inputs.size(); }
  size_t operator()(const OfQueries auto&) const { return node.inputs.size(); }
};

// Fusion.

// Makes value * scale + bias include the norm: (value * scale + bias - mean) / deviation * weight + shift.
void Fold(const BatchNormOp& norm, Layer& layer) {
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

// Sets the members of a layer that its first operator decides.
struct Beginning {
  const GraphNode& node;
  const Layers& layers;
  Layer& layer;

  void operator()(const OneOf<SparseConvOp, Conv2dOp, LinearOp> auto& op) const {
    if (op.bias) layer.bias = op.bias->values;
  }
  void operator()(const BatchNormOp& op) const { Fold(op, layer); }
  void operator()(const ActivationOp& op) const { layer.activation = op.activation; }
  void operator()(const AddOp& op) const {
    layer.is_union = !op.rulebooks.empty();
    if (!layer.is_union) layer.residual = layers.LayerOf(node.inputs[1]);
  }
  void operator()(const SampleNormOp& op) const {
    if (op.bias) layer.bias = op.bias->values;
    layer.has_scale = false;
  }
  void operator()(const BroadcastOp& op) const {
    layer.has_scale = false;
    layer.has_epilogue = op.function != BroadcastOp::Function::kConcat;
  }
  void operator()(const OneOf<DevoxelizeOp, VoxelToPointOp> auto&) const { layer.has_scale = false; }
  void operator()(const PoolOp&) const { layer.has_epilogue = !layers.IsPosition(layer.first_node); }
  void operator()(const OneOf<FarthestPointSampleOp, VoxelizeOp, PointFeaturesOp, PointOffsetsOp, PointToVoxelOp,
                              ConcatOp, ArgmaxOp, GlobalPoolOp, ToDenseOp, FromDenseOp, MaxPool2dOp, CropOp, PruneOp,
                              CenterHeadDecodeOp, AnchorHeadDecodeOp, NmsOp> auto&) const {
    layer.has_epilogue = false;
  }
  void operator()(const OneOf<SampleRowsOp, AttentionOp, GroupsOp, SiteCoordinatesOp> auto&) const {
    layer.has_epilogue = false;
  }
  void operator()(const RowNormOp& op) const {
    layer.has_scale = false;
    layer.has_epilogue = op.kind == kernels::RowNorm::kLayerNorm;
  }
  void operator()(const OneOf<ElementwiseOp, PReluOp, EmbeddingOp> auto&) const { layer.has_epilogue = false; }
  void operator()(const OneOf<RotaryOp, SitePositionOp> auto&) const { layer.has_epilogue = false; }
  void operator()(const OfQueries auto&) const { layer.has_epilogue = false; }
};

// Fuses the operator that reads a layer's value into the layer. Returns false if the layer's kernel cannot compute the
// operator.
struct Absorption {
  const GraphNode& node;
  const Layers& layers;
  Layer& layer;

  bool operator()(const BatchNormOp& op) const {
    if (!EndsWithSums() || !layer.has_scale) return false;
    Fold(op, layer);
    return true;
  }
  bool operator()(const AddOp& op) const {
    if (!EndsWithSums() || !op.rulebooks.empty()) return false;
    const int other = layers.LayerOf(node.inputs[0] == layer.result_node ? node.inputs[1] : node.inputs[0]);
    if (other < 0) return false;  // not computed yet: the other input's layer fuses the addition
    layer.residual = other;
    return true;
  }
  bool operator()(const ActivationOp& op) const {
    if (layer.activation) return false;
    layer.activation = op.activation;
    return true;
  }
  bool operator()(const OneOf<FarthestPointSampleOp, VoxelizeOp, PointFeaturesOp, PointOffsetsOp, PointToVoxelOp,
                              VoxelToPointOp, DevoxelizeOp, SparseConvOp, LinearOp, ConcatOp, ArgmaxOp, PoolOp,
                              GlobalPoolOp, BroadcastOp, SampleNormOp, ToDenseOp, FromDenseOp, Conv2dOp, MaxPool2dOp,
                              CropOp, PruneOp, CenterHeadDecodeOp, AnchorHeadDecodeOp, NmsOp> auto&) const {
    return false;
  }
  bool operator()(const OfRows auto&) const { return false; }
  bool operator()(const OfQueries auto&) const { return false; }

  bool operator()(const OneOf<SampleRowsOp, AttentionOp, GroupsOp, SiteCoordinatesOp> auto&) const { return false; }
  bool operator()(const OneOf<RotaryOp, SitePositionOp> auto&) const { return false; }

  // Returns true if no addition and no activation has been fused into the layer yet, and the layer itself is no
  // addition of tensors on different sites (is_union).
  bool EndsWithSums() const { return layer.residual < 0 && !layer.is_union && !layer.activation; }
};

// Emission. An operator with more to decide than its step's options has a function in the file of its family.

struct Emission {
  StepEmitter& emitter;
  int index;  // the layer's

  // Points are sampled before the first step runs, and groups are geometry. The first nms that reads decoders emits
  // them.
  void operator()(const OneOf<FarthestPointSampleOp, GroupsOp, CenterHeadDecodeOp, AnchorHeadDecodeOp> auto&) const {}

  void operator()(const VoxelizeOp& op) const {
    Push(std::make_unique<VoxelFeaturesStep>(
        VoxelFeaturesStep::Options{.out = emitter.UseBuffer(index),
                                   .first_column = static_cast<int>(op.axes.size()),
                                   .reduce = op.reduce,
                                   .max_points_per_voxel = op.max_points_per_voxel}));
  }

  void operator()(const SparseConvOp& op) const { EmitSparseConv(op, index, emitter); }
  void operator()(const LinearOp&) const { EmitLinear(index, emitter); }
  void operator()(const Conv2dOp& op) const { EmitConv2d(op, index, emitter); }

  // A batch norm or activation becomes a step of its own if it was not fused into an earlier layer. So does an addition
  // whose inputs are on one level (it has no rulebooks).
  void operator()(const OneOf<BatchNormOp, ActivationOp> auto&) const { PushScaleShift(); }
  void operator()(const AddOp& op) const {
    if (op.rulebooks.empty()) {
      PushScaleShift();
    } else {
      EmitUnionAdd(op, index, emitter);
    }
  }
  void operator()(const ConcatOp& op) const { EmitConcatCopies(op, index, emitter); }
  void operator()(const OneOf<CropOp, PruneOp> auto& op) const {
    const BufferSlice in = emitter.UseInputBuffer(index);
    EmitSameSites(index, op.rulebook, in, emitter.UseBuffer(index), emitter);
  }

  void operator()(const ArgmaxOp&) const { EmitArgmax(index, emitter); }
  void operator()(const PoolOp& op) const {
    const int rulebook = emitter.RulebookOf(op, /*conv_index=*/-1);
    emitter.program().rulebooks[static_cast<size_t>(rulebook)].is_pooled = true;
    emitter.CountWeights(index, layer().scale);
    Push(std::make_unique<PoolStep>(PoolStep::Options{.in = emitter.UseInputBuffer(index),
                                                      .out = emitter.UseBuffer(index),
                                                      .rulebook = rulebook,
                                                      .reduce = op.reduce,
                                                      .scale = std::move(layer().scale),
                                                      .epilogue = emitter.TakeEpilogue(index)}));
  }
  void operator()(const GlobalPoolOp& op) const {
    emitter.AddSampleLevel(emitter.Node(node().inputs[0]).level);
    Push(std::make_unique<GlobalPoolStep>(GlobalPoolStep::Options{.in = emitter.UseInputBuffer(index),
                                                                  .out = emitter.UseBuffer(index),
                                                                  .reduce = op.reduce,
                                                                  .exponent = op.exponent,
                                                                  .least = op.epsilon}));
  }
  void operator()(const BroadcastOp& op) const {
    emitter.AddSampleLevel(node().level);
    BroadcastStep::Options options{.function = op.function == BroadcastOp::Function::kMultiply
                                                   ? BroadcastStep::Function::kMultiply
                                                   : BroadcastStep::Function::kAdd};
    if (op.function == BroadcastOp::Function::kConcat) {
      ScaleShiftStep::Options copy{.in = emitter.UseInputBuffer(index, 0), .out = emitter.UseBuffer(index)};
      copy.out.channels = copy.in.channels;
      Push(std::make_unique<ScaleShiftStep>(std::move(copy)));
      options.function = BroadcastStep::Function::kCopy;
    } else {
      options.sites = emitter.UseInputBuffer(index, 0);
    }
    options.samples = emitter.UseInputBuffer(index, 1);
    options.out = emitter.UseBuffer(index);
    options.out.column += options.out.channels - options.samples.channels;
    options.out.channels = options.samples.channels;
    options.epilogue = emitter.TakeEpilogue(index);
    Push(std::make_unique<BroadcastStep>(std::move(options)));
  }
  void operator()(const SampleNormOp& op) const {
    emitter.AddSampleLevel(node().level);
    if (op.weight) emitter.CountWeights(index, op.weight->values);
    Push(std::make_unique<SampleNormStep>(
        SampleNormStep::Options{.in = emitter.UseInputBuffer(index),
                                .out = emitter.UseBuffer(index),
                                .num_groups = op.num_groups,
                                .epsilon = op.epsilon,
                                .weight = op.weight ? op.weight->values : std::vector<float>(),
                                .epilogue = emitter.TakeEpilogue(index)}));
  }

  void operator()(const SampleRowsOp& op) const {
    emitter.CountWeights(index, op.weight->values);
    const BufferSlice out = emitter.UseBuffer(index);
    const DType dtype = emitter.program().buffers[static_cast<size_t>(out.buffer)].dtype;
    Push(std::make_unique<SampleRowsStep>(op.weight->values, dtype, out));
  }
  void operator()(const AttentionOp& op) const {
    if (op.groups_of >= 0) {
      EmitGroupAttention(op);
      return;
    }
    bool are_of_samples = true;
    for (const int input : {node().inputs[0], node().inputs[1]}) {
      const int level = emitter.Node(input).level;
      if (level >= 0) emitter.AddSampleLevel(level);
      are_of_samples = are_of_samples && level == kSampleLevel;
    }
    Push(std::make_unique<AttentionStep>(AttentionStep::Options{.queries = emitter.UseInputBuffer(index, 0),
                                                                .keys = emitter.UseInputBuffer(index, 1),
                                                                .values = emitter.UseInputBuffer(index, 2),
                                                                .out = emitter.UseBuffer(index),
                                                                .num_heads = op.num_heads,
                                                                .scale = op.scale,
                                                                .keys_are_of_samples = are_of_samples}));
  }

  void operator()(const ElementwiseOp& op) const {
    Push(std::make_unique<ElementwiseStep>(ElementwiseStep::Options{.function = op.function,
                                                                    .epsilon = op.epsilon,
                                                                    .a = emitter.UseInputBuffer(index, 0),
                                                                    .b = emitter.UseInputBuffer(index, 1),
                                                                    .out = emitter.UseBuffer(index)}));
  }
  void operator()(const RowNormOp& op) const { Push(RowNormStepOf(op, emitter.UseInputBuffer(index), index, emitter)); }
  void operator()(const PReluOp& op) const {
    std::vector<float> slopes = op.slopes->values;
    if (slopes.size() == 1) slopes.assign(static_cast<size_t>(node().channels), slopes[0]);
    emitter.CountWeights(index, slopes);
    Push(std::make_unique<PReluStep>(PReluStep::Options{
        .in = emitter.UseInputBuffer(index), .out = emitter.UseBuffer(index), .slopes = std::move(slopes)}));
  }
  void operator()(const EmbeddingOp& op) const {
    BufferSlice number = emitter.UseInputBuffer(index);
    number.column += op.channel;
    number.channels = 1;
    const BufferSlice out = emitter.UseBuffer(index);
    const std::vector<Buffer>& buffers = emitter.program().buffers;
    Push(std::make_unique<EmbeddingStep>(
        EmbeddingStep::Options{.index = number,
                               .out = out,
                               .table = emitter.Counted(index, op.table),
                               .num_embeddings = op.table->shape[0],
                               .index_dtype = buffers[static_cast<size_t>(number.buffer)].dtype,
                               .out_dtype = buffers[static_cast<size_t>(out.buffer)].dtype}));
  }

  void operator()(const SiteCoordinatesOp& op) const {
    emitter.AddKeyLevel(node().level);
    Push(std::make_unique<SiteCoordinatesStep>(node().level, op.parameters, emitter.UseBuffer(index)));
  }

  void operator()(const RotaryOp& op) const {
    const bool has_positions = node().inputs.size() > 1;
    if (!has_positions) emitter.AddKeyLevel(node().level);
    Push(std::make_unique<RotaryStep>(
        RotaryStep::Options{.in = emitter.UseInputBuffer(index, 0),
                            .out = emitter.UseBuffer(index),
                            .positions = has_positions ? emitter.UseInputBuffer(index, 1) : BufferSlice(),
                            .dimension = emitter.graph().dimension,
                            .num_heads = op.num_heads,
                            .base = op.base}));
  }
  void operator()(const SitePositionOp& op) const {
    Push(std::make_unique<SitePositionStep>(SitePositionStep::Options{.out = emitter.UseBuffer(index),
                                                                      .is_mean = op.is_mean,
                                                                      .is_from_minimum = op.is_from_minimum,
                                                                      .scale = op.scale,
                                                                      .shift = op.shift}));
  }

  void operator()(const PointFeaturesOp&) const {
    Push(std::make_unique<PointFeaturesStep>(emitter.UseBuffer(index), emitter.graph().dimension));
  }
  void operator()(const PointOffsetsOp& op) const { EmitPointOffsets(op, index, emitter); }
  void operator()(const PointToVoxelOp& op) const { EmitPointToVoxel(op, index, emitter); }
  void operator()(const DevoxelizeOp&) const { EmitDevoxelize(index, emitter); }
  void operator()(const VoxelToPointOp&) const { EmitVoxelToPoint(index, emitter); }

  void operator()(const ToDenseOp& op) const {
    const int level = emitter.Node(node().inputs[0]).level;
    emitter.AddKeyLevel(level);
    Push(std::make_unique<ToDenseStep>(ToDenseStep::Options{.level = level,
                                                            .in = emitter.UseInputBuffer(index),
                                                            .out = emitter.UseBuffer(index),
                                                            .grid = emitter.SiteGridOf(op, level),
                                                            .depth = emitter.DepthOf(op, level)}));
  }
  void operator()(const FromDenseOp&) const {
    const int level = node().level;
    emitter.AddKeyLevel(level);
    Push(std::make_unique<FromDenseStep>(FromDenseStep::Options{
        .level = level,
        .in = emitter.UseInputBuffer(index),
        .out = emitter.UseBuffer(index),
        .grid = kernels::SiteGrid::RowMajor(emitter.graph().dimension, emitter.ShapeOf(level))}));
  }

  void operator()(const MaxPool2dOp& op) const {
    const kernels::Axes& size = emitter.Node(node().inputs[0]).grid->size;
    Push(std::make_unique<MaxPool2dStep>(MaxPool2dStep::Options{.in = emitter.UseInputBuffer(index),
                                                                .out = emitter.UseBuffer(index),
                                                                .in_rows = size[0],
                                                                .in_columns = size[1],
                                                                .geometry = op.geometry}));
  }

  void operator()(const NmsOp& op) const { EmitNms(op, index, emitter); }

  void operator()(const SelectOp& op) const {
    Push(std::make_unique<SelectStep>(SelectStep::Options{
        .parameters = op.parameters, .scores = emitter.UseInputBuffer(index), .out = emitter.UseBuffer(index)}));
  }
  void operator()(const GatherOp& op) const {
    const bool reads_image = op.of == kernels::GatherOf::kFeatures;
    const std::vector<int>& inputs = node().inputs;
    GatherStep::Options options{
        .of = op.of, .selection = emitter.UseNodeBuffer(inputs.back()), .out = emitter.UseBuffer(index)};
    if (reads_image) {
      const kernels::Axes& size = emitter.Node(inputs[0]).grid->size;
      options.image = emitter.UseInputBuffer(index, 0);
      options.num_rows = size[0];
      options.num_columns = size[1];
    }
    Push(std::make_unique<GatherStep>(options));
  }
  void operator()(const QueryDecodeOp& op) const { EmitQueryDecode(op, index, emitter); }

 private:
  void EmitGroupAttention(const AttentionOp& op) const {
    const auto& groups = std::get<GroupsOp>(emitter.Node(op.groups_of).op);
    emitter.AddSampleLevel(groups.order.level);
    Push(std::make_unique<GroupAttentionStep>(GroupAttentionStep::Options{.queries = emitter.UseInputBuffer(index, 0),
                                                                          .keys = emitter.UseInputBuffer(index, 1),
                                                                          .values = emitter.UseInputBuffer(index, 2),
                                                                          .out = emitter.UseBuffer(index),
                                                                          .order = emitter.OrderOf(groups.order),
                                                                          .size = groups.size,
                                                                          .tail = groups.tail,
                                                                          .num_heads = op.num_heads,
                                                                          .scale = op.scale}));
  }

  Layer& layer() const { return emitter.At(index); }
  const GraphNode& node() const { return emitter.FirstNode(layer()); }
  void Push(std::unique_ptr<Step> step) const { emitter.Push(index, std::move(step)); }
  void PushScaleShift() const {
    emitter.CountWeights(index, layer().scale);
    Push(std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = emitter.UseInputBuffer(index),
                                                                  .out = emitter.UseBuffer(index),
                                                                  .scale = std::move(layer().scale),
                                                                  .epilogue = emitter.TakeEpilogue(index)}));
  }
};

}  // namespace

size_t NumInputsRead(const GraphNode& node) { return std::visit(InputsRead{node}, node.op); }

Layer BeginLayer(int node, const Layers& layers) {
  Layer layer{.first_node = node, .result_node = node};
  std::visit(Beginning{layers.Node(node), layers, layer}, layers.Node(node).op);
  return layer;
}

bool AbsorbNode(int node, const Layers& layers, Layer& layer) {
  return std::visit(Absorption{layers.Node(node), layers, layer}, layers.Node(node).op);
}

void EmitLayer(int layer, StepEmitter& emitter) {
  const Layer& of_layer = emitter.At(layer);
  if (of_layer.is_shortcut || of_layer.is_in_mlp || of_layer.is_computed_by_other) return;
  if (of_layer.mlp) return EmitMlp(layer, emitter);
  emitter.ConvertInputs(emitter.At(layer));
  std::visit(Emission{emitter, layer}, emitter.FirstNode(emitter.At(layer)).op);
}

}  // namespace voxserve
