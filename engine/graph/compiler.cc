#include "engine/graph/compiler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/graph/batch_checks.h"
#include "engine/graph/conv2d_merging.h"
#include "engine/graph/layers.h"
#include "engine/graph/segments.h"
#include "engine/ops/argmax.h"
#include "engine/ops/box_output.h"
#include "engine/ops/broadcast.h"
#include "engine/ops/conv2d.h"
#include "engine/ops/decode_boxes.h"
#include "engine/ops/devoxelize.h"
#include "engine/ops/from_dense.h"
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
#include "engine/ops/to_dense.h"
#include "engine/ops/voxelize.h"
#include "kernels/fetch_on_demand.h"

namespace voxserve {
namespace {

constexpr int64_t kRowAlignmentBytes = 16;

class Compiler {
 public:
  Compiler(const Graph& graph, const Plan& plan, const CompileTarget& target)
      : graph_(graph),
        plan_(plan),
        target_(target),
        label_dtype_(target.bytes_per_label == 1 ? DType::kUint8 : DType::kUint16),
        layers_(graph) {}

  Program Compile() {
    if (target_.merges_conv2ds) MergeConv2ds(layers_);
    const Segments segments(layers_);
    program_.segments.resize(static_cast<size_t>(segments.size()));
    program_.scores.resize(graph_.levels.levels().size());
    PlaceConcats();
    MakeBuffers();
    // Segment by segment, layers of the head last, so that a step's number is its place in time: buffers live by it.
    for (int segment = 0; segment < segments.size(); ++segment) {
      program_.segments[static_cast<size_t>(segment)].first_step = static_cast<int>(program_.steps.size());
      EmitLayers([&](const Layer& layer) { return !IsLast(layer.first_node) && layer.segment == segment; });
      TouchScores(segments, segment + 1);
      program_.segments[static_cast<size_t>(segment)].end_step = static_cast<int>(program_.steps.size());
    }
    EmitLayers([this](const Layer& layer) { return IsLast(layer.first_node); });
    EmitPointOutput(graph_.labels_output, {.is_for_all = true});
    EmitPointOutput(graph_.scores_output, {.is_for_scores = true});
    if (graph_.boxes_output >= 0) {
      const int boxes = LayerOf(graph_.boxes_output);
      Push(At(boxes), std::make_unique<BoxOutputStep>(Touch(boxes)));
    }
    program_.segments.back().end_step = static_cast<int>(program_.steps.size());
    segments.Fill(sample_levels_, program_);
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
    for (const ProgramSegment& segment : program_.segments) {
      const std::vector<int64_t> no_sites(program_.levels.size(), 0);
      program_.sample_bytes += PlaceBuffers(program_, segment, no_sites, /*num_samples=*/1, /*num_points=*/0).bytes;
    }
    return std::move(program_);
  }

 private:
  const GraphNode& Node(int node) const { return layers_.Node(node); }
  Layer& At(int layer) { return layers_.At(layer); }
  const GraphNode& FirstNode(const Layer& layer) const { return layers_.FirstNode(layer); }
  int LayerOf(int node) const { return layers_.LayerOf(node); }
  int32_t ColumnsOf(const Layer& layer) const {
    return layer.members.empty() ? Node(layer.result_node).channels : layer.num_columns;
  }

  // What runs behind all layers.
  bool IsLast(int node) const {
    return layers_.IsHead(node) || IsDecoder(Node(node).op) || std::holds_alternative<NmsOp>(Node(node).op);
  }

  // The scores that decide about the levels of a segment live until its levels are made.
  void TouchScores(const Segments& segments, int segment) {
    const std::vector<CoordinateLevel>& levels = graph_.levels.levels();
    for (size_t level = 0; level < levels.size(); ++level) {
      const int score = layers_.ScoreOf(levels[level]);
      if (score >= 0 && segments.OfLevel(static_cast<int>(level)) == segment) program_.scores[level] = Touch(score);
    }
  }

  template <typename Predicate>
  void EmitLayers(const Predicate& is_wanted) {
    for (int layer = 0; layer < layers_.size(); ++layer) {
      if (is_wanted(At(layer))) EmitSteps(layer);
    }
  }

  void PlaceConcats() {
    for (int index = 0; index < layers_.size(); ++index) {
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

  DType DTypeOf(const Layer& layer) const {
    if (Node(layer.result_node).is_labels) return label_dtype_;
    if (Node(layer.result_node).max_boxes > 0) return DType::kFloat32;
    return layers_.IsReadByHeadAlone(layer) ? DType::kFloat32 : target_.dtype;
  }

  bool HasBuffer(const Layer& layer) const { return layer.stored_in < 0 && !layers_.IsPlainOutput(layer.result_node); }

  static int64_t PaddedPitch(int64_t channels, DType dtype) {
    const int64_t alignment = kRowAlignmentBytes / SizeOf(dtype);
    return (channels + alignment - 1) / alignment * alignment;
  }

  void MakeBuffers() {
    buffer_of_.assign(static_cast<size_t>(layers_.size()), -1);
    for (int index = 0; index < layers_.size(); ++index) {
      const Layer& layer = At(index);
      if (!HasBuffer(layer)) continue;
      const GraphNode& node = Node(layer.result_node);
      const DType dtype = DTypeOf(layer);
      const int32_t columns = ColumnsOf(layer);
      buffer_of_[static_cast<size_t>(index)] = static_cast<int>(program_.buffers.size());
      program_.buffers.push_back({.level = node.level,
                                  .rows_per_sample = node.rows_per_sample(),
                                  .dtype = dtype,
                                  .channels = columns,
                                  .pitch = node.is_labels ? columns : PaddedPitch(columns, dtype),
                                  .first_step = -1,
                                  .last_step = -1});
    }
  }

  // Where a layer's value lies; counts the next step as one that touches it.
  BufferSlice Touch(int index) {
    BufferSlice slice{.channels = ColumnsOf(At(index))};
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
    } else if (const auto* conv2d = std::get_if<Conv2dOp>(&node.op)) {
      EmitConv2d(*conv2d, index);
    } else if (const auto* to_dense = std::get_if<ToDenseOp>(&node.op)) {
      Push(layer, MakeToDense(*to_dense, index));
    } else if (std::holds_alternative<FromDenseOp>(node.op)) {
      Push(layer, MakeFromDense(index));
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
    } else if (const auto* crop = std::get_if<CropOp>(&node.op)) {
      EmitSameSites(layer, crop->rulebook, Touch(LayerOf(node.inputs[0])), Touch(index));
    } else if (const auto* prune = std::get_if<PruneOp>(&node.op)) {
      EmitSameSites(layer, prune->rulebook, Touch(LayerOf(node.inputs[0])), Touch(index));
    } else if (layer.is_union) {
      EmitUnionAdd(index);
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
      if (!layers_.IsPlainOutput(layer.result_node)) PushDevoxelize(index, {});
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
    std::vector<float> weights = Transposed(linear.weight->values, linear.out_channels);
    for (size_t i = 0; i < weights.size() && !layer.scale.empty(); ++i) {
      weights[i] *= layer.scale[i % layer.scale.size()];
    }
    return MakeRowProduct(std::move(weights), node, index);
  }

  // [out channels, in channels] to [in channels, out channels].
  static std::vector<float> Transposed(const std::vector<float>& weights, int32_t num_out) {
    const auto out_channels = static_cast<size_t>(num_out), in_channels = weights.size() / out_channels;
    std::vector<float> transposed(weights.size());
    for (size_t o = 0; o < out_channels; ++o) {
      for (size_t i = 0; i < in_channels; ++i) transposed[i * out_channels + o] = weights[o * in_channels + i];
    }
    return transposed;
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

  // Layers that are computed as one are, where the first of them stands.
  void EmitConv2d(const Conv2dOp& op, int index) {
    if (!At(index).members.empty()) return;  // it stands behind them
    const int stored_in = At(index).stored_in;
    if (stored_in >= 0 && !At(stored_in).members.empty()) {
      const std::vector<int>& members = At(stored_in).members;
      if (index != *std::min_element(members.begin(), members.end())) return;
      index = stored_in;
    }
    Layer& layer = At(index);
    const GraphNode& node = FirstNode(layer);
    FoldedConv2d conv = FoldConv2d(layers_, layer);
    layer.bias = std::move(conv.bias);
    if (conv.geometry == kernels::Conv2dGeometry()) {  // of a single cell that stays where it is
      Push(layer, MakeRowProduct(Transposed(conv.weights, ColumnsOf(layer)), node, index));
      return;
    }
    const kernels::Axes& in_size = Node(node.inputs[0]).grid->size;
    BufferSlice in = Touch(LayerOf(node.inputs[0]));
    in.channels = op.in_channels * layer.num_groups;
    CountWeights(conv.weights);
    Push(layer, std::make_unique<Conv2dStep>(Conv2dStep::Options{.in = in,
                                                                 .out = Touch(index),
                                                                 .in_rows = in_size[0],
                                                                 .in_columns = in_size[1],
                                                                 .geometry = conv.geometry,
                                                                 .epilogue = TakeEpilogue(layer),
                                                                 .dtype = target_.dtype,
                                                                 .allow_tf32 = target_.allow_tf32,
                                                                 .on_cuda = target_.on_cuda},
                                             std::move(conv.weights)));
  }

  std::unique_ptr<Step> MakeToDense(const ToDenseOp& op, int index) {
    const GraphNode& in_node = Node(FirstNode(At(index)).inputs[0]);
    const kernels::Axes& shape = *graph_.levels.levels()[static_cast<size_t>(in_node.level)].spatial_shape;
    AddKeyLevel(in_node.level);
    return std::make_unique<ToDenseStep>(
        ToDenseStep::Options{.level = in_node.level,
                             .in = Touch(LayerOf(FirstNode(At(index)).inputs[0])),
                             .out = Touch(index),
                             .grid = op.is_from_above ? kernels::SiteGrid::FromAbove(shape)
                                                      : kernels::SiteGrid::RowMajor(graph_.dimension, shape),
                             .depth = op.is_from_above ? shape[2] : 1});
  }

  std::unique_ptr<Step> MakeFromDense(int index) {
    const GraphNode& node = FirstNode(At(index));
    const kernels::Axes& shape = *graph_.levels.levels()[static_cast<size_t>(node.level)].spatial_shape;
    AddKeyLevel(node.level);
    return std::make_unique<FromDenseStep>(
        FromDenseStep::Options{.level = node.level,
                               .in = Touch(LayerOf(node.inputs[0])),
                               .out = Touch(index),
                               .grid = kernels::SiteGrid::RowMajor(graph_.dimension, shape)});
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

  void AddSampleLevel(int level) { AddLevel(level, sample_levels_); }
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
  Layers layers_;
  std::vector<int> buffer_of_;                                      // by layer; -1: none of its own
  std::map<std::pair<int, int>, InterpolationWeights> weights_of_;  // by positions' level and level
  std::vector<int> sample_levels_;                                  // whose samples' first rows are asked for
};

}  // namespace

Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target) {
  return Compiler(graph, plan, target).Compile();
}

}  // namespace voxserve
