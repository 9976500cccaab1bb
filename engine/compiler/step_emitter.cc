#include "engine/compiler/step_emitter.h"

#include <algorithm>

#include "engine/compiler/operators.h"
#include "engine/compiler/steps.h"
#include "engine/ops/boxes/box_output.h"
#include "engine/ops/points/devoxelize.h"
#include "engine/ops/points/point_output.h"
#include "engine/ops/rows/rotary.h"
#include "engine/ops/rows/scale_shift.h"
#include "engine/ops/rows/tensor_output.h"
#include "engine/tensor/infer_result.h"
#include "kernels/conv/pair_rotation.h"
#include "kernels/core/floats.h"

namespace voxserve {

void StepEmitter::EmitOutputs() {
  EmitPointOutput(NamedOutput::kLabels, graph_.labels_output, {.is_for_all = true});
  EmitPointOutput(NamedOutput::kScores, graph_.scores_output, {.is_for_scores = true});
  if (graph_.boxes_output >= 0) {
    const int boxes = layers_.LayerOf(graph_.boxes_output);
    Push(boxes, std::make_unique<BoxOutputStep>(UseBuffer(boxes)));
  }
  for (size_t i = 0; i < graph_.tensors.size(); ++i) EmitTensor(static_cast<int>(i));
}

void StepEmitter::EmitTensor(int tensor) {
  const auto& [name, index] = graph_.tensors[static_cast<size_t>(tensor)];
  const GraphNode& node = Node(index);
  program_.tensors.push_back(Describe(name, node));
  const Layer flags{.first_node = index, .for_tensors = TensorBit(tensor)};
  if (node.level == kPointLevel) {
    EmitPointOutput(/*name=*/{}, index, flags, tensor);
    return;
  }
  if (node.level >= 0) {
    AddSampleLevel(node.level);
    AddKeyLevel(node.level);
  }
  PushFor(flags, std::make_unique<TensorOutputStep>(TensorOutputStep::Options{
                     .in = TouchOutput(flags, index), .level = node.level, .tensor = tensor}));
}

TensorInfo StepEmitter::Describe(const std::string& name, const GraphNode& node) const {
  TensorInfo info{.name = name, .channels = node.channels};
  const auto dimension = static_cast<size_t>(graph_.dimension);
  if (node.level >= 0) {
    info.rows = TensorRows::kSites;
    const SiteUnit& unit = graph_.levels.levels()[static_cast<size_t>(node.level)].unit;
    for (size_t axis = 0; axis < dimension; ++axis) {
      const auto voxels = static_cast<double>(unit.voxels[axis]), parts = static_cast<double>(unit.parts[axis]);
      info.unit.push_back(parts > 0 ? voxels / parts : 0);
    }
  } else if (node.level == kSampleLevel) {
    info.rows = node.grid ? TensorRows::kCells : TensorRows::kSamples;
    if (node.grid) info.cells.assign(node.grid->size.begin(), node.grid->size.begin() + node.grid->dimension);
  }
  return info;
}

// The output of a voxel_to_point has no buffer: the output step reads the input of the voxel_to_point, and copies the
// voxels' rows to the points.
void StepEmitter::EmitPointOutput(std::string_view name, int node, Layer flags, int tensor) {
  if (node < 0) return;
  flags.first_node = node;
  const bool is_of_voxels = std::holds_alternative<VoxelToPointOp>(Node(node).op);
  const BufferSlice in = TouchOutput(flags, is_of_voxels ? Node(node).inputs[0] : node);
  PushFor(flags, std::make_unique<PointOutputStep>(in, name, tensor));
}

BufferSlice StepEmitter::TouchOutput(const Layer& reader, int node) {
  const int layer = layers_.LayerOf(node);
  if (int8_types_.IsStored(layer)) {
    Convert(layer, DType::kFloat32, reader);
    return UseAs(layer, DType::kFloat32);
  }
  const BufferSlice slice = UseNodeBuffer(node);
  Buffer buffer = program_.buffers[static_cast<size_t>(slice.buffer)];
  if (buffer.dtype != DType::kFloat16 && buffer.dtype != DType::kBfloat16) return slice;
  buffer.dtype = DType::kFloat32;
  buffer.channels = slice.channels;
  const BufferSlice converted = buffers_.UseBuffer(buffers_.Add(buffer));
  PushFor(reader, std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = slice, .out = converted}));
  return buffers_.UseBuffer(converted);
}

void StepEmitter::PushFor(const Layer& layer, std::unique_ptr<Step> step) {
  step->name = FirstNode(layer).name;
  step->is_for_all = layer.is_for_all;
  step->is_for_scores = layer.is_for_scores;
  step->for_tensors = layer.for_tensors;
  program_.steps.push_back(std::move(step));
}

FusedEpilogue StepEmitter::TakeEpilogue(int index) {
  Layer& layer = At(index);
  CountWeights(index, layer.bias);
  FusedEpilogue epilogue{.bias = std::move(layer.bias)};
  if (layer.residual >= 0) epilogue.residual = UseAs(layer.residual, AddedType(layer, layer.residual));
  if (layer.activation) epilogue.activation = *layer.activation;
  return epilogue;
}

void StepEmitter::CheckWeights(int layer, const std::vector<float>& values) {
  if (!program_.overflowing_step.empty() || std::all_of(values.begin(), values.end(), kernels::IsFinite)) return;
  program_.overflowing_step = FirstNode(At(layer)).name;
}

BufferSlice StepEmitter::WeightsOf(int position_level, int level, const Layer& reader) {
  const auto [found, is_new] = weights_of_.try_emplace({position_level, level});
  SharedValue& made = found->second;
  if (is_new) {
    const VoxelizeOp& voxelize = graph_.voxelize_op();
    const bool is_of_points = position_level == kPointLevel;
    AddKeyLevel(is_of_points ? 0 : position_level);
    AddKeyLevel(level);
    made.slice = buffers_.Add({.level = position_level, .channels = 2 << graph_.dimension});
    InterpolationWeightsStep::Options options{
        .out = buffers_.UseBuffer(made.slice),
        .dimension = graph_.dimension,
        .position_level = position_level,
        .level = level,
        .ratio = *graph_.levels.RatioBetween(is_of_points ? 0 : position_level, level),
        .rounding = voxelize.rounding,
        .voxel_size = voxelize.voxel_size};
    if (voxelize.origin == kernels::VoxelOrigin::kRange) options.shift = voxelize.range_min;
    PushFor(reader, std::make_unique<InterpolationWeightsStep>(options));
    made.step = program_.steps.back().get();
  }
  made.AddReader(reader);
  return made.slice;
}

BufferSlice StepEmitter::AnglesOf(int rotary, int pairs, const Layer& reader) {
  const GraphNode& node = Node(rotary);
  const bool has_positions = node.inputs.size() > 1;
  const float base = std::get<RotaryOp>(node.op).base;
  const auto [found, is_new] =
      angles_of_.try_emplace(std::tuple(node.level, has_positions ? layers_.LayerOf(node.inputs[1]) : -1, pairs, base));
  SharedValue& made = found->second;
  if (has_positions) Convert(layers_.LayerOf(node.inputs[1]), ReadType(rotary, node.inputs[1]), reader);
  if (is_new) {
    if (!has_positions) AddKeyLevel(node.level);
    made.slice = buffers_.Add({.level = node.level,
                               .dtype = DType::kFloat32,
                               .channels = kernels::AngleTableChannels(graph_.dimension * pairs)});
    PushFor(reader, std::make_unique<RotaryAnglesStep>(RotaryAnglesStep::Options{
                        .out = buffers_.UseBuffer(made.slice),
                        .positions = has_positions ? UseBufferFor(rotary, node.inputs[1]) : BufferSlice(),
                        .dimension = graph_.dimension,
                        .pairs = pairs,
                        .base = base}));
    made.step = program_.steps.back().get();
  }
  made.AddReader(reader);
  return buffers_.UseBuffer(made.slice);
}

kernels::SiteGrid StepEmitter::SiteGridOf(const ToDenseOp& op, int level) const {
  const kernels::Axes& shape = ShapeOf(level);
  return op.is_from_above ? kernels::SiteGrid::FromAbove(shape, graph_.dimension)
                          : kernels::SiteGrid::RowMajor(graph_.dimension, shape);
}

Conv2dStep::Options::ActiveBoxes StepEmitter::ActiveBoxesOf(int layer, const kernels::Conv2dGeometry& geometry,
                                                            int32_t in_channels) {
  const Layer& conv = At(layer);
  const int input = FirstNode(conv).inputs[0];
  const std::optional<ImageWindows>& in = image_windows_[static_cast<size_t>(input)];
  const bool is_in_16_bits = target_.on_cuda && target_.dtype != DType::kFloat32;
  if (!target_.leaves_out_boxes || !is_in_16_bits || !in ||
      !kernels::CanLeaveOutBoxes(geometry, in_channels, buffers_.ColumnsOf(conv))) {
    return {};
  }
  std::optional<ImageWindows> out = in->After(geometry);
  if (out && conv.residual >= 0) {
    const auto& residual = image_windows_[static_cast<size_t>(At(conv.residual).result_node)];
    out = residual ? out->With(*residual) : std::nullopt;
  }
  if (!out || !out->AreSmallIn(*Node(out->source).grid)) return {};
  const auto [found, is_new] = active_boxes_.try_emplace(out->source);
  SharedValue& made = found->second;
  if (is_new) {
    const GraphNode& source = Node(out->source);
    const auto& op = std::get<ToDenseOp>(source.op);
    const int level = Node(source.inputs[0]).level;
    made.slice = buffers_.Add({.level = kSampleLevel, .dtype = DType::kFloat32, .channels = 1});
    PushFor(conv,
            std::make_unique<ListActiveBoxesStep>(ListActiveBoxesStep::Options{.level = level,
                                                                               .grid = SiteGridOf(op, level),
                                                                               .depth = DepthOf(op, level),
                                                                               .out = buffers_.UseBuffer(made.slice)},
                                                  source.grid->size[0], source.grid->size[1]));
    made.step = program_.steps.back().get();
  }
  auto* const lists = static_cast<ListActiveBoxesStep*>(made.step);
  const kernels::Axes out_size = Node(conv.result_node).grid->size;
  const int number = lists->Add({.out_rows = out_size[0],
                                 .out_columns = out_size[1],
                                 .out_channels = buffers_.ColumnsOf(conv),
                                 .windows = {out->axes[0].source, out->axes[1].source},
                                 .reads_source = in->is_source && conv.residual < 0});
  if (number < 0) return {};
  buffers_.Resize(made.slice.buffer, static_cast<int32_t>(lists->layout().IntsAnImage()));
  made.AddReader(conv);
  buffers_.UseBuffer(made.slice);
  return {.lists = lists, .number = number};
}

void StepEmitter::SharedValue::AddReader(const Layer& reader) const {
  step->is_for_all |= reader.is_for_all;
  step->is_for_scores |= reader.is_for_scores;
  step->for_tensors |= reader.for_tensors;
}

void StepEmitter::ConvertInputs(const Layer& layer) {
  const GraphNode& node = FirstNode(layer);
  for (size_t i = 0; i < NumInputsRead(node); ++i) {
    Convert(layers_.LayerOf(node.inputs[i]), ReadType(layer.first_node, node.inputs[i]), layer);
  }
  if (layer.residual >= 0) Convert(layer.residual, AddedType(layer, layer.residual), layer);
  if (layer.shortcut < 0) return;
  const Layer& shortcut = At(layer.shortcut);
  const int input = FirstNode(shortcut).inputs[0];
  Convert(layers_.LayerOf(input), ReadType(shortcut.first_node, input), layer);
}

DType StepEmitter::ReadType(int reader, int node) const {
  const int layer = layers_.LayerOf(node);
  const int of_reader = layers_.LayerOf(reader);
  if (int8_types_.Multiplies(of_reader)) return int8_types_.NumberTypeOf(layer);
  if (int8_types_.IsStored(layer)) {
    // A concatenation of values on one level copies them in their type (EmitConcatCopies).
    const auto* const concat = std::get_if<ConcatOp>(&Node(reader).op);
    return concat != nullptr && concat->rulebooks.empty() ? buffers_.DTypeOf(layer) : target_.dtype;
  }
  return layers_.IsPosition(node) && !layers_.ReadsFloat32(reader, node) ? target_.dtype : buffers_.DTypeOf(layer);
}

DType StepEmitter::AddedType(const Layer& reader, int layer) const {
  if (int8_types_.Multiplies(layers_.LayerOf(reader.result_node))) return buffers_.DTypeOf(layer);
  const bool is_other = int8_types_.IsStored(layer) || layers_.IsPosition(layers_.At(layer).result_node);
  return is_other ? target_.dtype : buffers_.DTypeOf(layer);
}

void StepEmitter::Convert(int layer, DType dtype, const Layer& reader) {
  if (buffers_.DTypeOf(layer) == dtype) return;
  const auto [found, is_new] = converted_.try_emplace({layer, dtype});
  SharedValue& made = found->second;
  if (is_new) {
    const BufferSlice in = UseBuffer(layer);
    Buffer buffer = program_.buffers[static_cast<size_t>(in.buffer)];
    buffer.dtype = dtype;
    buffer.channels = in.channels;
    made.slice = buffers_.Add(buffer);
    const BufferSlice out = buffers_.UseBuffer(made.slice);
    const bool is_int8 = IsInt8(DTypeOf(in)) || IsInt8(dtype);
    PushFor(reader, is_int8 ? MakeInt8Conversion(in, out, layer, *this)
                            : std::make_unique<ScaleShiftStep>(ScaleShiftStep::Options{.in = in, .out = out}));
    made.step = program_.steps.back().get();
  }
  made.AddReader(reader);
}

BufferSlice StepEmitter::UseAs(int layer, DType dtype) {
  const auto found = converted_.find({layer, dtype});
  return found == converted_.end() ? UseBuffer(layer) : buffers_.UseBuffer(found->second.slice);
}

BufferSlice StepEmitter::UseBufferFor(int reader, int node) {
  return UseAs(layers_.LayerOf(node), ReadType(reader, node));
}

void StepEmitter::AddLevel(int level, std::vector<int>& levels) {
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) levels.push_back(level);
}

int StepEmitter::OrderOf(const SiteOrderSpec& spec) {
  std::vector<SiteOrderSpec>& orders = program_.orders;
  const auto found = std::find(orders.begin(), orders.end(), spec);
  const auto index = static_cast<int>(found - orders.begin());
  if (found == orders.end()) orders.push_back(spec);
  return index;
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
