#include <cstddef>
#include <cstdint>
#include <memory>
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

// The weights of a layer in 8 bits, packed, and what a sum must be multiplied by.
struct Int8Product {
  std::vector<kernels::Int8Line> weights;
  std::vector<float> multiplier;
};

// weights: [num_offsets, in channels, out channels], with batch norms folded in. They are multiplied by the scales of
// the inputs, so that one scale for each output channel remains.
Int8Product MakeProduct(std::vector<float> weights, int32_t num_offsets, int index, StepEmitter& emitter) {
  const Layer& layer = emitter.At(index);
  const int32_t out_channels = emitter.FirstNode(layer).channels;
  const int input = emitter.layers().LayerOf(emitter.FirstNode(layer).inputs[0]);
  const Int8Types& types = emitter.int8_types();
  const std::vector<float> scales = types.ScalesOf(input, types.NumberTypeOf(input));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] *= scales[i / static_cast<size_t>(out_channels) % scales.size()];
  }
  emitter.CheckWeights(index, weights);
  kernels::QuantisedWeights quantised = kernels::QuantiseWeights(weights, out_channels);
  Int8Product product = {.weights = kernels::cpu::PackInt8Weights(quantised.values.data(), num_offsets,
                                                                  static_cast<int32_t>(scales.size()), out_channels),
                         .multiplier = std::move(quantised.scale)};
  emitter.CountWeightBytes(product.weights.size() * sizeof(kernels::Int8Line));
  return product;
}

// Moves the bias out of the layer.
FusedInt8Epilogue MakeEpilogue(std::vector<float> multiplier, int index, StepEmitter& emitter) {
  const Int8Types& types = emitter.int8_types();
  Layer& layer = emitter.At(index);
  emitter.CheckWeights(index, layer.bias);
  FusedInt8Epilogue epilogue{.multiplier = PaddedForInt8(std::move(multiplier))};
  if (!layer.bias.empty()) epilogue.bias = PaddedForInt8(std::move(layer.bias));
  if (layer.residual >= 0) {
    epilogue.residual = emitter.UseBuffer(layer.residual);
    if (types.IsStored(layer.residual)) {
      epilogue.residual_scale = PaddedForInt8(types.ScalesOf(layer.residual, types.NumberTypeOf(layer.residual)));
    }
  }
  if (layer.activation) epilogue.activation = *layer.activation;
  if (types.IsStored(index)) epilogue.inverse_scale = InverseForInt8(types.ScalesOf(index, types.NumberTypeOf(index)));
  for (const std::vector<float>* const values :
       {&epilogue.multiplier, &epilogue.bias, &epilogue.residual_scale, &epilogue.inverse_scale}) {
    emitter.CountWeightBytes(values->size() * sizeof(float));
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
  Int8Product product = MakeProduct(Scaled(op.weight->values, emitter.At(index)), conv.num_offsets, index, emitter);
  emitter.Push(index, std::make_unique<Int8ConvStep>(Int8ConvStep::Options{
                          .in = emitter.UseInputBuffer(index),
                          .out = emitter.UseBuffer(index),
                          .index = conv_index,
                          .conv = std::move(conv),
                          .weights = std::move(product.weights),
                          .epilogue = MakeEpilogue(std::move(product.multiplier), index, emitter)}));
}

void EmitInt8Conv2d(const Conv2dOp& op, int index, StepEmitter& emitter) {
  const Layer& layer = emitter.At(index);
  const FoldedProduct folded = FoldProduct(emitter.layers(), layer);
  const kernels::Conv2dGeometry& geometry = folded.geometry;
  const int32_t num_cells = geometry.kernel_size[0] * geometry.kernel_size[1];
  Int8Product product = MakeProduct(ByCell(op, folded.weights), num_cells, index, emitter);
  if (geometry == kernels::Conv2dGeometry()) return PushInt8Linear(std::move(product), index, emitter);
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
    return dtype == DType::kFloat32 ? std::vector<float>() : emitter.int8_types().ScalesOf(layer, dtype);
  };
  options.in_scale = PaddedForInt8(scales_in(in));
  options.inverse_scale = InverseForInt8(scales_in(out));
  return std::make_unique<Int8ConversionStep>(std::move(options));
}

}  // namespace voxserve
