#include "engine/compiler/int8_types.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "engine/compiler/int8_values.h"

namespace voxserve {
namespace {

// Numbers of int8 end at 127, where those of uint8 end at 255.
constexpr float kScaleOfHalfTheNumbers = 255.0f / 127.0f;

}  // namespace

Int8Types::Int8Types(const Layers& layers, const std::vector<std::string>& float_nodes)
    : layers_(&layers), is_non_negative_(layers.graph().nodes.size()) {
  const Int8Candidates candidates = FindInt8Candidates(layers.graph());
  for (const Int8Value& value : candidates.values) {
    is_non_negative_[static_cast<size_t>(value.node)] = value.is_non_negative;
  }
  multiplies_.resize(static_cast<size_t>(layers.size()));
  is_stored_.resize(static_cast<size_t>(layers.size()));
  for (const Int8Layer& layer : candidates.layers) {
    const std::string& name = layers.Node(layer.first_node).name;
    const bool stays_float = std::find(float_nodes.begin(), float_nodes.end(), name) != float_nodes.end();
    multiplies_[static_cast<size_t>(layers.LayerOf(layer.result_node))] =
        !stays_float && HasScales(layers.Node(layer.first_node).inputs[0]);
  }
  FindStored();
}

bool Int8Types::HasScales(int node) const {
  const std::vector<int> parts = Int8PartsOf(layers_->graph(), node);
  return std::all_of(parts.begin(), parts.end(), [&](int part) { return layers_->Node(part).scale > 0; });
}

// Goes backwards, since the layers that read a value stand after it.
void Int8Types::FindStored() {
  for (int i = layers_->size() - 1; i >= 0; --i) {
    const Layer& layer = layers_->At(i);
    const auto* const concat = std::get_if<ConcatOp>(&layers_->FirstNode(layer).op);
    const bool is_of_one_level = concat != nullptr && concat->rulebooks.empty();
    if (!Multiplies(i) && !is_of_one_level) continue;  // no other layer can write in 8 bits
    if (layers_->IsOutput(layer.result_node) || layers_->DecidesSites(layer.result_node)) continue;
    const std::vector<int>& readers = layers_->ReadersOf(layer);
    is_stored_[static_cast<size_t>(i)] = std::any_of(readers.begin(), readers.end(), [&](int node) {
      const int reader = layers_->LayerOf(node);
      const GraphNode& first = layers_->FirstNode(layers_->At(reader));
      if (Multiplies(reader)) return first.inputs[0] == layer.result_node;
      return std::holds_alternative<ConcatOp>(first.op) && IsStored(reader);
    });
  }
}

DType Int8Types::NumberTypeOf(int layer) const {
  const std::vector<int> parts = Int8PartsOf(layers_->graph(), layers_->At(layer).result_node);
  return std::all_of(parts.begin(), parts.end(), [&](int part) { return is_non_negative_[static_cast<size_t>(part)]; })
             ? DType::kUint8
             : DType::kInt8;
}

std::vector<float> Int8Types::ScalesOf(int layer, DType dtype) const {
  std::vector<float> scales;
  for (const int part : Int8PartsOf(layers_->graph(), layers_->At(layer).result_node)) {
    const GraphNode& node = layers_->Node(part);
    const bool has_half = dtype == DType::kInt8 && is_non_negative_[static_cast<size_t>(part)];
    scales.insert(scales.end(), static_cast<size_t>(node.channels),
                  has_half ? node.scale * kScaleOfHalfTheNumbers : node.scale);
  }
  return scales;
}

}  // namespace voxserve
