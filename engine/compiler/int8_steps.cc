#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/compiler/product_merging.h"
#include "engine/compiler/row_products.h"
#include "engine/compiler/steps.h"
#include "engine/ops/int8/int8_conv.h"
#include "engine/ops/int8/int8_conv2d.h"
#include "engine/ops/int8/int8_conversion.h"
#include "engine/ops/int8/int8_linear.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {
namespace {

// The weights of a layer in 8 bits, packed, those of its shortcut, and what a sum must be multiplied by.
struct Int8Product {
  Int8Weights weights, shortcut_weights;
  std::vector<float> multiplier;
};

// Multiplies weights [..., in channels, out channels] by the scales of the layer's inputs. Returns the number of input
// channels.
int32_t ScaleByInputs(int index, StepEmitter& emitter, std::vector<float>& weights) {
  const GraphNode& node = emitter.FirstNode(emitter.At(index));
  const int input = emitter.layers().LayerOf(node.inputs[0]);
  const Int8Types& types = emitter.int8_types();
  const std::vector<float> scales = types.ScalesOf(input, types.NumberTypeOf(input));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] *= scales[i / static_cast<size_t>(node.channels) % scales.size()];
  }
  return static_cast<int32_t>(scales.size());
}

// weights: [num_offsets, in channels, out channels], with batch norms folded in. They and those of the layer's shortcut
// are multiplied by the scales of the inputs, so that one scale for each output channel remains. geometry: of a
// convolution of images; null for other layers.
Int8Product MakeProduct(std::vector<float> weights, int32_t num_offsets, int index, StepEmitter& emitter,
                        const kernels::Conv2dGeometry* geometry = nullptr) {
  const Layer& layer = emitter.At(index);
  const int32_t out_channels = emitter.FirstNode(layer).channels;
  const bool on_cuda = emitter.target().on_cuda;
  const int32_t in_channels = ScaleByInputs(index, emitter, weights);
  const size_t shortcut_begin = weights.size();
  int32_t shortcut_channels = 0;
  if (layer.shortcut >= 0) {
    std::vector<float> of_shortcut = RowProductWeights(emitter.layers(), emitter.At(layer.shortcut));
    shortcut_channels = ScaleByInputs(layer.shortcut, emitter, of_shortcut);
    weights.insert(weights.end(), of_shortcut.begin(), of_shortcut.end());
  }
  emitter.CheckWeights(index, weights);
  kernels::QuantisedWeights quantised = kernels::QuantiseWeights(weights, out_channels);
  const int8_t* const numbers = quantised.values.data();
  Int8Product product = {.weights = geometry == nullptr
                                        ? Int8Weights(numbers, num_offsets, in_channels, out_channels, on_cuda)
                                        : Int8Weights::OfConv2d(numbers, *geometry, in_channels, out_channels, on_cuda),
                         .shortcut_weights = {},
                         .multiplier = std::move(quantised.scale)};
  if (layer.shortcut >= 0) {
    product.shortcut_weights =
        Int8Weights(numbers + shortcut_begin, /*num_offsets=*/1, shortcut_channels, out_channels, on_cuda);
  }
  emitter.CountWeightBytes(product.weights.bytes() + product.shortcut_weights.bytes());
  return product;
}

bool CommutesWithScale(const std::optional<kernels::Activation>& activation) {
  return !activation || activation->function == kernels::ActivationFunction::kNone ||
         activation->function == kernels::ActivationFunction::kRelu;
}

void Multiply(const std::vector<float>& factors, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] *= factors[i];
}

// Moves the bias out of the layer. The output's scale becomes part of the other arrays where the activation allows it.
FusedInt8Epilogue MakeEpilogue(std::vector<float> multiplier, int index, StepEmitter& emitter) {
  const Int8Types& types = emitter.int8_types();
  Layer& layer = emitter.At(index);
  std::vector<float> bias = std::move(layer.bias), residual_scale, inverse_scale;
  emitter.CheckWeights(index, bias);
  FusedInt8Epilogue epilogue;
  if (layer.residual >= 0) {
    epilogue.residual = emitter.UseBuffer(layer.residual);
    if (types.IsStored(layer.residual)) {
      residual_scale = types.ScalesOf(layer.residual, types.NumberTypeOf(layer.residual));
    }
  }
  if (layer.activation) epilogue.activation = *layer.activation;
  if (types.IsStored(index)) {
    inverse_scale = InverseForInt8(types.ScalesOf(index, types.NumberTypeOf(index)));
    if (CommutesWithScale(layer.activation)) {
      Multiply(inverse_scale, multiplier);
      Multiply(inverse_scale, bias);
      if (layer.residual >= 0 && residual_scale.empty()) residual_scale.assign(multiplier.size(), 1.0f);
      Multiply(inverse_scale, residual_scale);
      inverse_scale.clear();
    }
  }
  epilogue.multiplier = PaddedForInt8(std::move(multiplier));
  epilogue.bias = PaddedForInt8(std::move(bias));
  epilogue.residual_scale = PaddedForInt8(std::move(residual_scale));
  epilogue.inverse_scale = std::move(inverse_scale);
  for (const Weights* const values :
       {&epilogue.multiplier, &epilogue.bias, &epilogue.residual_scale, &epilogue.inverse_scale}) {
    emitter.CountWeightBytes(values->values().size() * sizeof(float));
  }
  return epilogue;
}

void PushInt8Linear(Int8Product product, int index, StepEmitter& emitter) {
  emitter.Push(index, std::make_unique<Int8LinearStep>(Int8LinearStep::Options{
                          .in = emitter.UseInputBuffer(index),
                          .out = emitter.UseBuffer(index),
                          .weights = std::move(product.weights),
                          .epilogue = MakeEpilogue(std::move(product.multiplier), index, emitter)}));
}

// Returns weights in PyTorch's order (Conv2dOp::weight) as [cells, in channels, out channels].
std::vector<float> ByCell(const Conv2dOp& op, const std::vector<float>& weights) {
  const auto ins = static_cast<size_t>(op.in_channels), outs = static_cast<size_t>(op.out_channels);
  const size_t num_cells = weights.size() / (ins * outs);
  std::vector<float> by_cell(weights.size());
  for (size_t cell = 0; cell < num_cells; ++cell) {
    for (size_t i = 0; i < ins; ++i) {
      for (size_t o = 0; o < outs; ++o) {
        const size_t matrix = op.geometry.is_transposed ? i * outs + o : o * ins + i;
        by_cell[(cell * ins + i) * outs + o] = weights[matrix * num_cells + cell];
      }
    }
  }
  return by_cell;
}

}  // namespace

void EmitInt8Conv(const SparseConvOp& op, ProgramConv conv, int conv_index, int index, StepEmitter& emitter) {
  Layer& layer = emitter.At(index);
  Int8Product product = MakeProduct(Scaled(op.weight->values, layer), conv.num_offsets, index, emitter);
  Int8ConvStep::Options options{.in = emitter.UseInputBuffer(index),
                                .out = emitter.UseBuffer(index),
                                .index = conv_index,
                                .conv = std::move(conv),
                                .weights = std::move(product.weights)};
  if (layer.shortcut >= 0) {
    options.shortcut_in = emitter.UseInputBuffer(layer.shortcut);
    options.shortcut_weights = std::move(product.shortcut_weights);
    AddShortcutBias(emitter.At(layer.shortcut), layer);
  }
  options.epilogue = MakeEpilogue(std::move(product.multiplier), index, emitter);
  emitter.Push(index, std::make_unique<Int8ConvStep>(std::move(options)));
}

void EmitInt8Conv2d(const Conv2dOp& op, int index, StepEmitter& emitter) {
  const Layer& layer = emitter.At(index);
  const FoldedProduct folded = FoldProduct(emitter.layers(), layer);
  const kernels::Conv2dGeometry& geometry = folded.geometry;
  const int32_t num_cells = geometry.kernel_size[0] * geometry.kernel_size[1];
  const bool is_linear = geometry == kernels::Conv2dGeometry();
  Int8Product product =
      MakeProduct(ByCell(op, folded.weights), num_cells, index, emitter, is_linear ? nullptr : &geometry);
  if (is_linear) return PushInt8Linear(std::move(product), index, emitter);
  const kernels::Axes& in_size = emitter.Node(emitter.FirstNode(layer).inputs[0]).grid->size;
  emitter.Push(index, std::make_unique<Int8Conv2dStep>(Int8Conv2dStep::Options{
                          .in = emitter.UseInputBuffer(index),
                          .out = emitter.UseBuffer(index),
                          .in_rows = in_size[0],
                          .in_columns = in_size[1],
                          .geometry = geometry,
                          .weights = std::move(product.weights),
                          .epilogue = MakeEpilogue(std::move(product.multiplier), index, emitter)}));
}

void EmitInt8Linear(int index, StepEmitter& emitter) {
  PushInt8Linear(MakeProduct(RowProductWeights(emitter.layers(), emitter.At(index)), /*num_offsets=*/1, index, emitter),
                 index, emitter);
}

std::unique_ptr<Step> MakeInt8Conversion(const BufferSlice& in, const BufferSlice& out, int layer,
                                         const StepEmitter& emitter) {
  Int8ConversionStep::Options options{.in = in, .out = out};
  const auto scales_in = [&](const BufferSlice& slice) {
    const DType dtype = emitter.DTypeOf(slice);
    return IsInt8(dtype) ? emitter.int8_types().ScalesOf(layer, dtype) : std::vector<float>();
  };
  options.in_scale = PaddedForInt8(scales_in(in));
  options.inverse_scale = InverseForInt8(scales_in(out));
  return std::make_unique<Int8ConversionStep>(std::move(options));
}

}  // namespace voxserve
