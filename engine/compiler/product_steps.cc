// Sparse convolutions, linear layers and convolutions of images: layers with weights.

#include <algorithm>

#include "engine/compiler/conv2d_merging.h"
#include "engine/compiler/step_emitter.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/ops/image/conv2d.h"
#include "engine/ops/rows/linear.h"

namespace voxserve {
namespace {

// weights: [..., out channels]; scale: empty or [out channels].
std::vector<float> Scaled(std::vector<float> weights, const std::vector<float>& scale) {
  for (size_t i = 0; i < weights.size() && !scale.empty(); ++i) weights[i] *= scale[i % scale.size()];
  return weights;
}

// [out channels, in channels] to [in channels, out channels].
std::vector<float> Transposed(const std::vector<float>& weights, int32_t num_out) {
  const auto out_channels = static_cast<size_t>(num_out), in_channels = weights.size() / out_channels;
  std::vector<float> transposed(weights.size());
  for (size_t o = 0; o < out_channels; ++o) {
    for (size_t i = 0; i < in_channels; ++i) transposed[i * out_channels + o] = weights[o * in_channels + i];
  }
  return transposed;
}

}  // namespace

void StepEmitter::EmitSparseConv(const SparseConvOp& conv, int index) {
  Layer& layer = At(index);
  const GraphNode& node = FirstNode(layer);
  std::vector<float> weights = Scaled(conv.weight->values, layer.scale);
  const kernels::ConvGeometry& geometry = conv.geometry();
  // One of a single cell that stays on its level maps every site to itself.
  const RulebookSpec& spec = graph_.levels.rulebooks()[static_cast<size_t>(conv.rulebook)];
  if (spec.in_level == spec.out_level && geometry.NumOffsets() == 1 && geometry.IsSymmetric()) {
    return EmitRowProduct(std::move(weights), index);
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
  const ConvShape shape{.in_channels = made.in_channels,
                        .out_channels = made.out_channels,
                        .dtype = made.dtype,
                        .num_offsets = geometry.NumOffsets(),
                        .is_symmetric = geometry.IsSymmetric()};
  made.served = ServedDataflows(shape, target_.on_cuda);
  Push(layer, std::make_unique<SparseConvStep>(SparseConvStep::Options{.in = TouchInput(index),
                                                                       .out = Touch(index),
                                                                       .conv = conv_index,
                                                                       .rulebook = made.rulebook,
                                                                       .shape = shape,
                                                                       .epilogue = TakeEpilogue(layer),
                                                                       .on_cuda = target_.on_cuda},
                                               std::move(weights)));
}

void StepEmitter::EmitLinear(const LinearOp& linear, int index) {
  EmitRowProduct(Scaled(Transposed(linear.weight->values, linear.out_channels), At(index).scale), index);
}

void StepEmitter::EmitRowProduct(std::vector<float> weights, int index) {
  CountWeights(weights);
  const BufferSlice out = Touch(index);
  Push(At(index), std::make_unique<LinearStep>(
                      LinearStep::Options{.in = TouchInput(index),
                                          .out = out,
                                          .weights = std::move(weights),
                                          .epilogue = TakeEpilogue(At(index)),
                                          .dtype = target_.dtype,
                                          .out_dtype = program_.buffers[static_cast<size_t>(out.buffer)].dtype}));
}

// Layers that are computed as one are, where the first of them stands.
void StepEmitter::EmitConv2d(const Conv2dOp& op, int index) {
  if (!At(index).members.empty()) return;  // it stands behind them
  const int stored_in = At(index).stored_in;
  if (stored_in >= 0 && !At(stored_in).members.empty()) {
    const std::vector<int>& members = At(stored_in).members;
    if (index != *std::min_element(members.begin(), members.end())) return;
    index = stored_in;
  }
  Layer& layer = At(index);
  FoldedConv2d conv = FoldConv2d(layers_, layer);
  layer.bias = std::move(conv.bias);
  if (conv.geometry == kernels::Conv2dGeometry()) {  // of a single cell that stays where it is
    return EmitRowProduct(Transposed(conv.weights, buffers_.ColumnsOf(layer)), index);
  }
  const kernels::Axes& in_size = Node(FirstNode(layer).inputs[0]).grid->size;
  BufferSlice in = TouchInput(index);
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

}  // namespace voxserve
