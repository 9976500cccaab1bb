#include "engine/compiler/row_products.h"

#include <cstddef>
#include <utility>
#include <variant>

namespace voxserve {

bool IsRowProduct(const Layers& layers, const Layer& layer) {
  const GraphOp& op = layers.FirstNode(layer).op;
  if (std::holds_alternative<LinearOp>(op)) return true;
  const auto* const conv = std::get_if<SparseConvOp>(&op);
  if (conv == nullptr) return false;
  const RulebookSpec& spec = layers.graph().levels.rulebooks()[static_cast<size_t>(conv->rulebook)];
  return spec.in_level == spec.out_level && conv->geometry().NumOffsets() == 1 && conv->geometry().IsSymmetric();
}

std::vector<float> Scaled(std::vector<float> weights, const Layer& layer) {
  const std::vector<float>& scale = layer.scale;
  for (size_t i = 0; i < weights.size() && !scale.empty(); ++i) weights[i] *= scale[i % scale.size()];
  return weights;
}

std::vector<float> Transposed(const std::vector<float>& weights, int32_t num_out) {
  const auto out_channels = static_cast<size_t>(num_out), in_channels = weights.size() / out_channels;
  std::vector<float> transposed(weights.size());
  for (size_t o = 0; o < out_channels; ++o) {
    for (size_t i = 0; i < in_channels; ++i) transposed[i * out_channels + o] = weights[o * in_channels + i];
  }
  return transposed;
}

std::vector<float> RowProductWeights(const Layers& layers, const Layer& layer) {
  const GraphOp& op = layers.FirstNode(layer).op;
  if (const auto* const conv = std::get_if<SparseConvOp>(&op)) return Scaled(conv->weight->values, layer);
  const auto& linear = std::get<LinearOp>(op);
  return Scaled(Transposed(linear.weight->values, linear.out_channels), layer);
}

}  // namespace voxserve
