#include "engine/compiler/layer_fusion.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <variant>
#include <vector>

#include "engine/compiler/row_products.h"
#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"
#include "kernels/rows/mlp/mlp.h"

namespace voxserve {
namespace {

using kernels::ActivationFunction;

int InputOf(const Layers& layers, int layer) { return layers.LayerOf(layers.FirstNode(layers.At(layer)).inputs[0]); }

bool IsFree(const Layer& layer) { return !layer.is_in_mlp && !layer.mlp; }

// Returns true for a row product that is part of no MLP.
bool IsProduct(const Layers& layers, int layer) {
  return IsFree(layers.At(layer)) && IsRowProduct(layers, layers.At(layer));
}

// Returns true for a layer norm that is part of no MLP.
bool IsLayerNorm(const Layers& layers, int layer) {
  const auto* const norm = std::get_if<RowNormOp>(&layers.FirstNode(layers.At(layer)).op);
  return norm != nullptr && norm->kind == kernels::RowNorm::kLayerNorm && IsFree(layers.At(layer));
}

// Returns true if something beside the nodes that read the layer's value needs it.
bool IsKept(const Layers& layers, const Layer& layer) {
  return layers.IsOutput(layer.result_node) || layers.DecidesSites(layer.result_node);
}

// Returns true if only nodes of these layers read the layer's value.
bool IsReadOnlyBy(const Layers& layers, int layer, std::initializer_list<int> allowed) {
  const Layer& of_layer = layers.At(layer);
  if (IsKept(layers, of_layer)) return false;
  const std::vector<int>& readers = layers.ReadersOf(of_layer);
  return std::all_of(readers.begin(), readers.end(), [&](int reader) {
    return std::find(allowed.begin(), allowed.end(), layers.LayerOf(reader)) != allowed.end();
  });
}

bool HasKernel(const Layers& layers, int first, int second) {
  const auto channels_of = [&](int layer) { return layers.Node(layers.At(layer).result_node).channels; };
  return kernels::MlpShapeOf(channels_of(InputOf(layers, first)), channels_of(first), channels_of(second)).padded_in >
         0;
}

// Returns the MLP whose second product is this layer.
std::optional<MlpParts> FindMlp(const std::function<bool(int)>& is_left_out, const Layers& layers, int second) {
  if (is_left_out(second) || !IsProduct(layers, second) || layers.At(second).activation) return std::nullopt;
  const int first = InputOf(layers, second);
  if (is_left_out(first) || !IsProduct(layers, first) || layers.At(first).residual >= 0) return std::nullopt;
  const kernels::Activation activation = layers.At(first).activation.value_or(ActivationFunction::kNone);
  if (activation != ActivationFunction::kGelu && activation != ActivationFunction::kRelu) return std::nullopt;
  if (!IsReadOnlyBy(layers, first, {second}) || layers.At(second).residual == first) return std::nullopt;
  if (!HasKernel(layers, first, second) || layers.StaysFloat32(layers.At(second))) return std::nullopt;
  MlpParts parts{.first = first, .second = second};
  const int norm = InputOf(layers, first);
  if (IsLayerNorm(layers, norm) && layers.At(norm).residual < 0 && !layers.At(norm).activation &&
      IsReadOnlyBy(layers, norm, {first, second})) {
    parts.input_norm = norm;
  }
  for (int last = second; parts.norms.size() < size_t{kernels::kMaxMlpNorms}; last = parts.norms.back()) {
    const std::vector<int>& readers = layers.ReadersOf(layers.At(last));
    if (readers.size() != 1) break;
    const int next = layers.LayerOf(readers.front());
    if (!IsLayerNorm(layers, next) || layers.At(next).activation) break;
    if (layers.At(next).first_node != readers.front()) break;
    if (!IsReadOnlyBy(layers, last, {next}) || layers.StaysFloat32(layers.At(next))) break;
    parts.norms.push_back(next);
  }
  return parts;
}

bool CanAddShortcut(const Layers& layers, int conv, int shortcut) {
  const Layer& of_conv = layers.At(conv);
  const Layer& of_shortcut = layers.At(shortcut);
  if (!std::holds_alternative<SparseConvOp>(layers.FirstNode(of_conv).op) || IsRowProduct(layers, of_conv))
    return false;
  if (!IsProduct(layers, shortcut)) return false;
  if (of_conv.shortcut >= 0) return false;  // a kernel adds one shortcut
  const Layer& earlier = conv < shortcut ? of_conv : of_shortcut;
  const Layer& later = conv < shortcut ? of_shortcut : of_conv;
  // The later layer has taken the addition, and the earlier layer as its residual.
  const bool is_read_elsewhere = layers.ReadersOf(earlier).size() != 1 || IsKept(layers, earlier);
  return !is_read_elsewhere && !earlier.activation && layers.InputsOf(of_shortcut).front() < conv &&
         !layers.StaysFloat32(later);
}

// Returns the linear layer whose result the rotary of this node rotates; -1 if no linear layer can rotate it for the
// attention.
int RotatedProduct(const std::function<bool(int)>& is_left_out, const Layers& layers, int rotary, int attention) {
  const GraphNode& node = layers.Node(rotary);
  const auto* const op = std::get_if<RotaryOp>(&node.op);
  const GraphNode& reader = layers.Node(attention);
  if (op == nullptr || op->num_heads != std::get<AttentionOp>(reader.op).num_heads) return -1;
  const Layer& of_rotary = layers.At(layers.LayerOf(rotary));
  const std::vector<int>& readers = layers.ReadersOf(of_rotary);
  if (IsKept(layers, of_rotary) || rotary == reader.inputs[2] ||
      std::any_of(readers.begin(), readers.end(), [&](int other) { return other != attention; })) {
    return -1;
  }
  const int product = layers.LayerOf(node.inputs[0]);
  const Layer& of_product = layers.At(product);
  if (!std::holds_alternative<LinearOp>(layers.FirstNode(of_product).op) || is_left_out(product)) return -1;
  if (IsKept(layers, of_product) || layers.ReadersOf(of_product).size() != 1) return -1;
  if (of_product.residual >= 0 || of_product.activation) return -1;
  const bool has_positions = node.inputs.size() > 1;
  return has_positions && layers.LayerOf(node.inputs[1]) >= InputOf(layers, product) ? -1 : product;
}

}  // namespace

void FuseMlps(const std::function<bool(int)>& is_left_out, Layers& layers) {
  for (int second = 0; second < layers.size(); ++second) {
    if (const std::optional<MlpParts> parts = FindMlp(is_left_out, layers, second)) layers.FuseMlp(*parts);
  }
}

void FuseNorms(Layers& layers) {
  for (int second = 0; second < layers.size(); ++second) {
    const Layer& of_second = layers.At(second);
    if (!IsLayerNorm(layers, second) || of_second.residual >= 0 || of_second.activation) continue;
    const int first = InputOf(layers, second);
    const Layer& of_first = layers.At(first);
    if (!IsLayerNorm(layers, first) || of_first.second_norm >= 0 || of_first.is_computed_by_other) continue;
    if (layers.StaysFloat32(of_first) || layers.StaysFloat32(of_second)) continue;
    layers.At(first).second_norm = second;
    layers.At(second).is_computed_by_other = true;
  }
}

void FuseShortcuts(const std::function<bool(int, int)>& may_share_sums, Layers& layers) {
  const auto can_add = [&](int conv, int shortcut) {
    return CanAddShortcut(layers, conv, shortcut) && may_share_sums(conv, shortcut);
  };
  for (int later = 0; later < layers.size(); ++later) {
    const int earlier = layers.At(later).residual;
    if (earlier < 0) continue;
    if (can_add(earlier, later)) {
      layers.FuseShortcut(earlier, later);
    } else if (can_add(later, earlier)) {
      layers.FuseShortcut(later, earlier);
    }
  }
}

void FuseConvNorms(Layers& layers) {
  for (int norm = 0; norm < layers.size(); ++norm) {
    const Layer& of_norm = layers.At(norm);
    if (!IsLayerNorm(layers, norm) || of_norm.is_computed_by_other || of_norm.activation) continue;
    const int conv = InputOf(layers, norm);
    const Layer& of_conv = layers.At(conv);
    if (!std::holds_alternative<SparseConvOp>(layers.FirstNode(of_conv).op) || IsRowProduct(layers, of_conv)) continue;
    if (!IsReadOnlyBy(layers, conv, {norm}) || of_norm.residual == conv) continue;
    if (of_conv.residual >= 0 || of_conv.activation) continue;
    if (!kernels::HasNormedRows(layers.Node(of_conv.result_node).channels)) continue;
    if (layers.StaysFloat32(of_norm) || of_norm.residual >= conv) continue;
    if (of_norm.residual >= 0 && layers.StaysFloat32(layers.At(of_norm.residual))) continue;
    layers.At(conv).norm = norm;
    layers.At(norm).is_computed_by_other = true;
  }
}

void FuseRotaries(const std::function<bool(int)>& is_left_out, Layers& layers) {
  for (int attention = 0; attention < layers.size(); ++attention) {
    const int node = layers.At(attention).first_node;
    if (!std::holds_alternative<AttentionOp>(layers.Node(node).op)) continue;
    const int queries = layers.Node(node).inputs[0], keys = layers.Node(node).inputs[1];
    const int of_queries = RotatedProduct(is_left_out, layers, queries, node);
    const int of_keys = RotatedProduct(is_left_out, layers, keys, node);
    if (of_queries < 0 || of_keys < 0) continue;
    layers.FuseRotary(of_queries, queries);
    if (keys != queries) layers.FuseRotary(of_keys, keys);
  }
}

}  // namespace voxserve
