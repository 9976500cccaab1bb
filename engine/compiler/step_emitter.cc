#include "engine/compiler/step_emitter.h"

#include <algorithm>

#include "engine/ops/boxes/box_output.h"
#include "engine/ops/image/from_dense.h"
#include "engine/ops/image/to_dense.h"
#include "engine/ops/points/point_features.h"
#include "engine/ops/points/point_output.h"
#include "engine/ops/points/voxelize.h"
#include "engine/ops/rows/argmax.h"
#include "engine/ops/rows/broadcast.h"
#include "engine/ops/rows/global_pool.h"
#include "engine/ops/rows/pool.h"
#include "engine/ops/rows/sample_norm.h"
#include "engine/ops/rows/scale_shift.h"
#include "engine/tensor/infer_result.h"

namespace voxserve {

void StepEmitter::EmitLayer(int index) {
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
    EmitSparseConv(*conv, index);
  } else if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
    EmitLinear(*linear, index);
  } else if (const auto* conv2d = std::get_if<Conv2dOp>(&node.op)) {
    EmitConv2d(*conv2d, index);
  } else if (const auto* to_dense = std::get_if<ToDenseOp>(&node.op)) {
    EmitToDense(*to_dense, index);
  } else if (std::holds_alternative<FromDenseOp>(node.op)) {
    EmitFromDense(index);
  } else if (std::holds_alternative<ConcatOp>(node.op)) {
    EmitConcatCopies(index);
  } else if (const auto* nms = std::get_if<NmsOp>(&node.op)) {
    EmitNms(*nms, index);
  } else if (const auto* global = std::get_if<GlobalPoolOp>(&node.op)) {
    AddSampleLevel(Node(node.inputs[0]).level);
    Push(layer, std::make_unique<GlobalPoolStep>(
                    GlobalPoolStep::Options{.in = TouchInput(index), .out = Touch(index), .reduce = global->reduce}));
  } else if (const auto* broadcast = std::get_if<BroadcastOp>(&node.op)) {
    EmitBroadcast(*broadcast, index);
  } else if (const auto* norm = std::get_if<SampleNormOp>(&node.op)) {
    EmitSampleNorm(*norm, index);
  } else if (const auto* pool = std::get_if<PoolOp>(&node.op)) {
    const int rulebook = RulebookOf(*pool, /*conv_index=*/-1);
    program_.rulebooks[static_cast<size_t>(rulebook)].is_pooled = true;
    Push(layer, std::make_unique<PoolStep>(PoolStep::Options{
                    .in = TouchInput(index), .out = Touch(index), .rulebook = rulebook, .reduce = pool->reduce}));
  } else if (const auto* crop = std::get_if<CropOp>(&node.op)) {
    EmitSameSites(layer, crop->rulebook, TouchInput(index), Touch(index));
  } else if (const auto* prune = std::get_if<PruneOp>(&node.op)) {
    EmitSameSites(layer, prune->rulebook, TouchInput(index), Touch(index));
  } else if (layer.is_union) {
    EmitUnionAdd(index);
  } else if (std::holds_alternative<ArgmaxOp>(node.op)) {
    const BufferSlice in = TouchInput(index);
    Push(layer, std::make_unique<ArgmaxStep>(in, Touch(index)));
  } else if (std::holds_alternative<PointFeaturesOp>(node.op)) {
    Push(layer, std::make_unique<PointFeaturesStep>(Touch(index), graph_.dimension));
  } else if (const auto* to_voxel = std::get_if<PointToVoxelOp>(&node.op)) {
    EmitPointToVoxel(*to_voxel, index);
  } else if (std::holds_alternative<DevoxelizeOp>(node.op)) {
    EmitDevoxelize(index);
  } else if (std::holds_alternative<VoxelToPointOp>(node.op)) {
    if (!layers_.IsMadeByAnswer(layer.result_node)) PushDevoxelize(index, /*weights=*/{});
  } else {  // what is left of batch_norm, activation, add
    CountWeights(layer.scale);
    Push(layer, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = TouchInput(index),
                                                                         .out = Touch(index),
                                                                         .scale = std::move(layer.scale),
                                                                         .epilogue = TakeEpilogue(layer)}));
  }
}

void StepEmitter::EmitOutputs() {
  EmitPointOutput(NamedOutput::kLabels, graph_.labels_output, {.is_for_all = true});
  EmitPointOutput(NamedOutput::kScores, graph_.scores_output, {.is_for_scores = true});
  if (graph_.boxes_output < 0) return;
  const int boxes = layers_.LayerOf(graph_.boxes_output);
  Push(At(boxes), std::make_unique<BoxOutputStep>(Touch(boxes)));
}

// What a voxel_to_point copies is taken from where it copies it.
void StepEmitter::EmitPointOutput(std::string_view name, int node, Layer flags) {
  if (node < 0) return;
  flags.first_node = node;
  const bool is_of_voxels = std::holds_alternative<VoxelToPointOp>(Node(node).op);
  const BufferSlice in = TouchOutput(flags, is_of_voxels ? Node(node).inputs[0] : node);
  Push(flags, std::make_unique<PointOutputStep>(in, name));
}

BufferSlice StepEmitter::TouchOutput(const Layer& reader, int node) {
  const BufferSlice slice = TouchNode(node);
  Buffer buffer = program_.buffers[static_cast<size_t>(slice.buffer)];
  if (buffer.dtype != DType::kFloat16 && buffer.dtype != DType::kBfloat16) return slice;
  buffer.dtype = DType::kFloat32;
  buffer.channels = slice.channels;
  const BufferSlice converted = buffers_.Touch(buffers_.Add(buffer));
  Push(reader, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = slice, .out = converted}));
  return buffers_.Touch(converted);
}

void StepEmitter::Push(const Layer& layer, std::unique_ptr<Step> step) {
  step->name = FirstNode(layer).name;
  step->is_for_all = layer.is_for_all;
  step->is_for_scores = layer.is_for_scores;
  program_.steps.push_back(std::move(step));
}

FusedEpilogue StepEmitter::TakeEpilogue(Layer& layer) {
  CountWeights(layer.bias);
  FusedEpilogue epilogue{.bias = std::move(layer.bias)};
  if (layer.residual >= 0) epilogue.residual = Touch(layer.residual);
  if (layer.activation) epilogue.activation = *layer.activation;
  return epilogue;
}

void StepEmitter::CountWeights(const std::vector<float>& values) {
  program_.weight_bytes += static_cast<int64_t>(values.size() * sizeof(float));
}

void StepEmitter::EmitToDense(const ToDenseOp& op, int index) {
  const int level = Node(FirstNode(At(index)).inputs[0]).level;
  const kernels::Axes& shape = *graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape;
  AddKeyLevel(level);
  Push(At(index), std::make_unique<ToDenseStep>(ToDenseStep::Options{
                      .level = level,
                      .in = TouchInput(index),
                      .out = Touch(index),
                      .grid = op.is_from_above ? kernels::SiteGrid::FromAbove(shape)
                                               : kernels::SiteGrid::RowMajor(graph_.dimension, shape),
                      .depth = op.is_from_above ? shape[2] : 1}));
}

void StepEmitter::EmitFromDense(int index) {
  const int level = FirstNode(At(index)).level;
  const kernels::Axes& shape = *graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape;
  AddKeyLevel(level);
  Push(At(index), std::make_unique<FromDenseStep>(
                      FromDenseStep::Options{.level = level,
                                             .in = TouchInput(index),
                                             .out = Touch(index),
                                             .grid = kernels::SiteGrid::RowMajor(graph_.dimension, shape)}));
}

// The inputs of a concatenation that were not written in place.
void StepEmitter::EmitConcatCopies(int index) {
  const GraphNode& concat = FirstNode(At(index));
  const std::vector<int>& rulebooks = std::get<ConcatOp>(concat.op).rulebooks;
  int32_t column = 0;
  for (size_t i = 0; i < concat.inputs.size(); ++i) {
    const int node = concat.inputs[i];
    const Layer& input = At(layers_.LayerOf(node));
    const int32_t channels = Node(node).channels;
    if (input.stored_in != index || input.column != column) {
      ScaleShiftStep::Options copy{.in = TouchNode(node), .out = Touch(index)};
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

void StepEmitter::EmitSameSites(const Layer& layer, int rulebook, const BufferSlice& in, const BufferSlice& out) {
  const int walked = FindOrAdd({.spec = graph_.levels.rulebooks()[static_cast<size_t>(rulebook)], .first_conv = -1});
  program_.rulebooks[static_cast<size_t>(walked)].is_pooled = true;
  Push(layer, std::make_unique<PoolStep>(
                  PoolStep::Options{.in = in, .out = out, .rulebook = walked, .reduce = kernels::PoolReduce::kSum}));
}

void StepEmitter::EmitUnionAdd(int index) {
  const GraphNode& add = FirstNode(At(index));
  BufferSlice sides[2];
  for (size_t i = 0; i < 2; ++i) {
    if (Node(add.inputs[i]).HasRowsOf(add)) continue;
    const BufferSlice in = TouchInput(index, i);
    Buffer moved = program_.buffers[static_cast<size_t>(in.buffer)];
    moved.level = add.level;
    moved.channels = in.channels;
    sides[i] = buffers_.Touch(buffers_.Add(moved));
    EmitSameSites(At(index), std::get<AddOp>(add.op).rulebooks[i], in, sides[i]);
  }
  for (size_t i = 0; i < 2; ++i) sides[i] = sides[i].buffer < 0 ? TouchInput(index, i) : buffers_.Touch(sides[i]);
  FusedEpilogue epilogue = TakeEpilogue(At(index));
  epilogue.residual = sides[1];
  Push(At(index), std::make_unique<ScaleShiftStep>(
                      ScaleShiftStep::Options{.in = sides[0], .out = Touch(index), .epilogue = std::move(epilogue)}));
}

void StepEmitter::EmitBroadcast(const BroadcastOp& op, int index) {
  AddSampleLevel(FirstNode(At(index)).level);
  BroadcastStep::Options options{.function = op.function == BroadcastOp::Function::kMultiply
                                                 ? BroadcastStep::Function::kMultiply
                                                 : BroadcastStep::Function::kAdd};
  if (op.function == BroadcastOp::Function::kConcat) {
    ScaleShiftStep::Options copy{.in = TouchInput(index, 0), .out = Touch(index)};
    copy.out.channels = copy.in.channels;
    Push(At(index), std::make_unique<ScaleShiftStep>(std::move(copy)));
    options.function = BroadcastStep::Function::kCopy;
  } else {
    options.sites = TouchInput(index, 0);
  }
  options.samples = TouchInput(index, 1);
  options.out = Touch(index);
  options.out.column += options.out.channels - options.samples.channels;
  options.out.channels = options.samples.channels;
  options.epilogue = TakeEpilogue(At(index));
  Push(At(index), std::make_unique<BroadcastStep>(std::move(options)));
}

void StepEmitter::EmitSampleNorm(const SampleNormOp& op, int index) {
  AddSampleLevel(FirstNode(At(index)).level);
  if (op.weight) CountWeights(op.weight->values);
  Push(At(index), std::make_unique<SampleNormStep>(
                      SampleNormStep::Options{.in = TouchInput(index),
                                              .out = Touch(index),
                                              .num_groups = op.num_groups,
                                              .epsilon = op.epsilon,
                                              .weight = op.weight ? op.weight->values : std::vector<float>(),
                                              .epilogue = TakeEpilogue(At(index))}));
}

void StepEmitter::AddLevel(int level, std::vector<int>& levels) {
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) levels.push_back(level);
}

int StepEmitter::FindOrAdd(const ProgramRulebook& wanted) {
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

}  // namespace voxserve
