#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "engine/compiler/product_merging.h"
#include "engine/compiler/row_products.h"
#include "engine/compiler/steps.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/mlp/mlp.h"
#include "engine/ops/rows/argmax.h"
#include "engine/ops/rows/linear.h"

namespace voxserve {
namespace {

// Returns the layer whose product is emitted in the place of this layer: for the first member of a merged layer the
// merged one; -1 for what the first member has emitted.
int EmittedLayer(int index, StepEmitter& emitter) {
  const auto at = [&](int layer) -> const Layer& { return emitter.layers().At(layer); };
  if (!at(index).members.empty()) return -1;
  const int stored_in = at(index).stored_in;
  if (stored_in < 0 || at(stored_in).members.empty()) return index;
  const std::vector<int>& members = at(stored_in).members;
  return index == *std::min_element(members.begin(), members.end()) ? stored_in : -1;
}

// Returns which columns of a layer's product are rotated. Emits the table of angles if it is not there yet.
LinearStep::Options::Rotation RotationOf(int index, StepEmitter& emitter) {
  const Layer& layer = emitter.At(index);
  const std::vector<int> products = layer.members.empty() ? std::vector<int>{index} : layer.members;
  LinearStep::Options::Rotation rotation;
  for (const int product : products) {
    const Layer& rotated = emitter.At(product);
    if (rotated.rotary < 0) break;
    rotation.num_columns += emitter.Node(rotated.rotary).channels;
  }
  if (rotation.num_columns == 0) return {};
  const Layer& first = emitter.At(products.front());
  rotation.head_pairs = RotatedPairs(emitter.layers(), first) * emitter.graph().dimension;
  rotation.angles = emitter.AnglesOf(first.rotary, RotatedPairs(emitter.layers(), first), layer);
  return rotation;
}

// weights: [in channels, out channels], scaled.
void EmitRowProduct(std::vector<float> weights, int index, StepEmitter& emitter) {
  emitter.CountWeights(index, weights);
  const LinearStep::Options::Rotation rotation = RotationOf(index, emitter);
  const BufferSlice out = emitter.UseBuffer(index);
  emitter.Push(index, std::make_unique<LinearStep>(LinearStep::Options{
                          .in = emitter.UseInputBuffer(index),
                          .out = out,
                          .weights = std::move(weights),
                          .epilogue = emitter.TakeEpilogue(index),
                          .rotation = rotation,
                          .dtype = emitter.target().dtype,
                          .out_dtype = emitter.program().buffers[static_cast<size_t>(out.buffer)].dtype,
                          .on_cuda = emitter.target().on_cuda}));
}

// Returns the step of the convolution's shortcut, which is kept for the dataflows that do not add the shortcut
// themselves; null if there is none. Its bias becomes the convolution's.
std::unique_ptr<LinearStep> TakeShortcut(Layer& conv, const BufferSlice& out, StepEmitter& emitter) {
  if (conv.shortcut < 0) return nullptr;
  const Layer& shortcut = emitter.At(conv.shortcut);
  std::vector<float> weights = RowProductWeights(emitter.layers(), shortcut);
  emitter.CountWeights(conv.shortcut, weights);
  AddShortcutBias(shortcut, conv);
  return std::make_unique<LinearStep>(
      LinearStep::Options{.in = emitter.UseInputBuffer(conv.shortcut),
                          .out = out,
                          .weights = std::move(weights),
                          .epilogue = {.residual = out, .activation = conv.activation.value_or(kernels::Activation())},
                          .dtype = emitter.target().dtype,
                          .out_dtype = emitter.target().dtype,
                          .on_cuda = emitter.target().on_cuda});
}

// Returns the linear layer that computes `values` and can write their labels; null if there is none.
LinearStep* FindClassifier(const BufferSlice& values, Program& program) {
  for (const std::unique_ptr<Step>& step : program.steps) {
    auto* const linear = dynamic_cast<LinearStep*>(step.get());
    if (linear != nullptr && linear->options().out == values && linear->CanLabel()) return linear;
  }
  return nullptr;
}

}  // namespace

void AddShortcutBias(const Layer& shortcut, Layer& conv) {
  conv.bias.resize(std::max(conv.bias.size(), shortcut.bias.size()));
  for (size_t i = 0; i < shortcut.bias.size(); ++i) conv.bias[i] += shortcut.bias[i];
}

std::unique_ptr<RowNormStep> RowNormStepOf(const RowNormOp& op, const BufferSlice& in, int index,
                                           StepEmitter& emitter) {
  RowNormStep::Options options{.in = in,
                               .out = emitter.UseBuffer(index),
                               .kind = op.kind,
                               .epsilon = op.epsilon,
                               .weight = emitter.Counted(index, op.weight),
                               .bias = emitter.Counted(index, op.bias),
                               .epilogue = emitter.TakeEpilogue(index)};
  if (const int second = emitter.At(index).second_norm; second >= 0) {
    const auto& norm = std::get<RowNormOp>(emitter.FirstNode(emitter.At(second)).op);
    options.second = {.out = emitter.UseBuffer(second),
                      .epsilon = norm.epsilon,
                      .weight = emitter.Counted(index, norm.weight),
                      .bias = emitter.Counted(index, norm.bias)};
  }
  return std::make_unique<RowNormStep>(std::move(options));
}

void EmitSparseConv(const SparseConvOp& conv, int index, StepEmitter& emitter) {
  Layer& layer = emitter.At(index);
  const GraphNode& node = emitter.FirstNode(layer);
  const bool is_int8 = emitter.int8_types().Multiplies(index);
  if (IsRowProduct(emitter.layers(), layer)) {
    if (is_int8) return EmitInt8Linear(index, emitter);
    return EmitRowProduct(RowProductWeights(emitter.layers(), layer), index, emitter);
  }
  const kernels::ConvGeometry& geometry = conv.geometry();
  const int conv_index = static_cast<int>(emitter.program().convs.size());
  ProgramConv made{.node = node.name,
                   .step = static_cast<int>(emitter.program().steps.size()),
                   .rulebook = emitter.RulebookOf(conv, conv_index),
                   .in_channels = emitter.Node(node.inputs[0]).channels,
                   .out_channels = node.channels,
                   .dtype = is_int8 ? DType::kInt8 : emitter.target().dtype,
                   .num_offsets = geometry.NumOffsets(),
                   .allow_tf32 = emitter.target().allow_tf32,
                   .is_symmetric = geometry.IsSymmetric(),
                   .is_on_cuda = emitter.target().on_cuda};
  made.served = ServedDataflows(made);
  emitter.program().convs.push_back(made);
  if (is_int8) return EmitInt8Conv(conv, std::move(made), conv_index, index, emitter);
  std::vector<float> weights = Scaled(conv.weight->values, layer);
  emitter.CountWeights(index, weights);
  const BufferSlice out = emitter.UseBuffer(index);
  std::unique_ptr<LinearStep> shortcut = TakeShortcut(layer, out, emitter);
  std::unique_ptr<RowNormStep> norm;
  if (layer.norm >= 0) {
    norm = RowNormStepOf(std::get<RowNormOp>(emitter.FirstNode(emitter.At(layer.norm)).op), out, layer.norm, emitter);
  }
  emitter.Push(index, std::make_unique<SparseConvStep>(SparseConvStep::Options{.in = emitter.UseInputBuffer(index),
                                                                               .out = out,
                                                                               .index = conv_index,
                                                                               .conv = std::move(made),
                                                                               .epilogue = emitter.TakeEpilogue(index)},
                                                       std::move(weights), std::move(shortcut), std::move(norm)));
}

void EmitLinear(int layer, StepEmitter& emitter) {
  if (emitter.int8_types().Multiplies(layer)) return EmitInt8Linear(layer, emitter);
  const int index = EmittedLayer(layer, emitter);
  if (index < 0) return;
  FoldedProduct linear = FoldProduct(emitter.layers(), emitter.At(index));
  emitter.At(index).bias = std::move(linear.bias);
  EmitRowProduct(Transposed(linear.weights, emitter.buffers().ColumnsOf(emitter.At(index))), index, emitter);
}

void EmitMlp(int index, StepEmitter& emitter) {
  const MlpParts parts = *emitter.At(index).mlp;
  for (const int part : parts.All()) emitter.ConvertInputs(emitter.At(part));
  const auto take_product = [&](int layer) {
    std::vector<float> weights = RowProductWeights(emitter.layers(), emitter.At(layer));
    emitter.CountWeights(layer, weights);
    return weights;
  };
  const auto take_norm = [&](int layer) {
    const auto& op = std::get<RowNormOp>(emitter.FirstNode(emitter.At(layer)).op);
    const auto channels = static_cast<size_t>(emitter.FirstNode(emitter.At(layer)).channels);
    MlpStep::Norm norm{.weight = op.weight ? op.weight->values : std::vector<float>(channels, 1.0f),
                       .bias = op.bias ? op.bias->values : std::vector<float>(channels, 0.0f),
                       .epsilon = op.epsilon,
                       .residual = emitter.TakeEpilogue(layer).residual};
    emitter.CountWeights(layer, norm.weight.values());
    emitter.CountWeights(layer, norm.bias.values());
    return norm;
  };
  MlpStep::Options options{
      .first = take_product(parts.first), .second = take_product(parts.second), .dtype = emitter.target().dtype};
  const bool has_norm = parts.input_norm >= 0;
  const int begin = has_norm ? parts.input_norm : parts.first;
  options.in = emitter.UseInputBuffer(begin);
  if (has_norm) options.input_norm.push_back(take_norm(parts.input_norm));
  FusedEpilogue of_first = emitter.TakeEpilogue(parts.first);
  options.hidden_bias = std::move(of_first.bias);
  options.activation = of_first.activation.function;
  // The kernel has its normalised input, or its input, on the chip.
  const int on_chip = emitter.layers().LayerOf(emitter.FirstNode(emitter.At(parts.first)).inputs[0]);
  Layer& second = emitter.At(parts.second);
  options.adds_normed_input = second.residual == on_chip;
  if (options.adds_normed_input) second.residual = -1;
  FusedEpilogue of_second = emitter.TakeEpilogue(parts.second);
  options.bias = std::move(of_second.bias);
  options.residual = of_second.residual;
  for (const int norm : parts.norms) options.norms.push_back(take_norm(norm));
  options.out = emitter.UseBuffer(index);
  emitter.Push(index, std::make_unique<MlpStep>(std::move(options)));
}

void EmitArgmax(int index, StepEmitter& emitter) {
  const int read = emitter.FirstNode(emitter.At(index)).inputs[0];
  ArgmaxStep::Options options{.in = emitter.UseInputBuffer(index), .out = emitter.UseBuffer(index)};
  if (LinearStep* const classifier = FindClassifier(options.in, emitter.program()); classifier != nullptr) {
    const Layers& layers = emitter.layers();
    const Layer& layer = layers.At(layers.LayerOf(read));
    const std::vector<int>& readers = layers.ReadersOf(layer);
    classifier->is_for_all = layers.DecidesSites(read) || std::any_of(readers.begin(), readers.end(), [&](int reader) {
                               const int of_reader = layers.LayerOf(reader);
                               return of_reader != index && layers.At(of_reader).is_for_all;
                             });
    emitter.buffers().UseBuffer(classifier->options().in);
    options.classifier = classifier;
  }
  emitter.Push(index, std::make_unique<ArgmaxStep>(options));
}

void EmitConv2d(const Conv2dOp& op, int index, StepEmitter& emitter) {
  if (emitter.int8_types().Multiplies(index)) return EmitInt8Conv2d(op, index, emitter);
  index = EmittedLayer(index, emitter);
  if (index < 0) return;
  Layer& layer = emitter.At(index);
  FoldedProduct conv = FoldProduct(emitter.layers(), layer);
  layer.bias = std::move(conv.bias);
  if (conv.geometry == kernels::Conv2dGeometry()) {  // a 1x1 kernel with stride 1 is a product of rows
    return EmitRowProduct(Transposed(conv.weights, emitter.buffers().ColumnsOf(layer)), index, emitter);
  }
  const kernels::Axes& in_size = emitter.Node(emitter.FirstNode(layer).inputs[0]).grid->size;
  const int32_t in_channels = op.in_channels * layer.num_groups;
  const Conv2dStep::Options::ActiveBoxes active = emitter.ActiveBoxesOf(index, conv.geometry, in_channels);
  BufferSlice in = emitter.UseInputBuffer(index);
  in.channels = in_channels;
  emitter.CountWeights(index, conv.weights);
  emitter.Push(index, std::make_unique<Conv2dStep>(Conv2dStep::Options{.in = in,
                                                                       .out = emitter.UseBuffer(index),
                                                                       .in_rows = in_size[0],
                                                                       .in_columns = in_size[1],
                                                                       .geometry = conv.geometry,
                                                                       .epilogue = emitter.TakeEpilogue(index),
                                                                       .dtype = emitter.target().dtype,
                                                                       .allow_tf32 = emitter.target().allow_tf32,
                                                                       .on_cuda = emitter.target().on_cuda,
                                                                       .active = active},
                                                   std::move(conv.weights)));
}

}  // namespace voxserve
