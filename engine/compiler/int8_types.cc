#include "engine/compiler/int8_types.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_values.h"
#include "kernels/conv/int8_epilogue.h"
#include "kernels/image/int8/int8_im2col.h"

namespace voxserve {
namespace {

// Numbers of int8 end at 127, where those of uint8 end at 255.
constexpr float kScaleOfHalfTheNumbers = 255.0f / 127.0f;

// A convolution of images with at most so many output channels would leave most of a tile empty on a GPU.
constexpr int kFewImageChannels = 32;

// Returns true if a GPU should multiply a convolution of images in 8 bits. Where several read one value, MergeProducts
// makes one product of them in float16, which is faster than many small ones. has_kernel: the GPU has that for images.
bool SuitsGpu(const Layers& layers, const GraphNode& first, bool has_kernel) {
  const auto& conv = std::get<Conv2dOp>(first.op);
  const int input = first.inputs[0];
  const std::vector<int>& readers = layers.ReadersOf(layers.At(layers.LayerOf(input)));
  const auto num_alike = std::count_if(readers.begin(), readers.end(), [&](int reader) {
    const auto* const other = std::get_if<Conv2dOp>(&layers.Node(reader).op);
    return other != nullptr && other->geometry == conv.geometry;
  });
  if (num_alike > 1 && !conv.geometry.is_transposed) return false;
  if (conv.geometry == kernels::Conv2dGeometry()) return true;  // a linear layer
  const kernels::Axes& in_size = layers.Node(input).grid->size;
  return has_kernel && conv.out_channels > kFewImageChannels &&
         kernels::IsForInt8Im2col(conv.geometry, in_size[0], in_size[1], conv.in_channels);
}

}  // namespace

Int8Types::Int8Types(const Layers& layers, const CompileTarget& target)
    : layers_(&layers), on_cuda_(target.on_cuda), is_non_negative_(layers.graph().nodes.size()) {
  const Int8Candidates candidates = FindInt8Candidates(layers.graph());
  for (const Int8Value& value : candidates.values) {
    is_non_negative_[static_cast<size_t>(value.node)] = value.is_non_negative;
  }
  multiplies_.resize(static_cast<size_t>(layers.size()));
  for (const Int8Layer& layer : candidates.layers) {
    const GraphNode& first = layers.Node(layer.first_node);
    const bool is_image_on_gpu = on_cuda_ && std::holds_alternative<Conv2dOp>(first.op);
    const bool stays_float =
        std::find(target.float_nodes.begin(), target.float_nodes.end(), first.name) != target.float_nodes.end() ||
        (is_image_on_gpu && !SuitsGpu(layers, first, target.has_int8_images));
    multiplies_[static_cast<size_t>(layers.LayerOf(layer.result_node))] = !stays_float && HasScales(first.inputs[0]);
  }
}

bool Int8Types::MayShareSums(int conv, int shortcut) const {
  if (Multiplies(conv) != Multiplies(shortcut)) return false;
  if (!Multiplies(conv)) return on_cuda_;  // float32's kernel on the CPU adds no shortcut
  const GraphNode& of_conv = layers_->FirstNode(layers_->At(conv));
  const GraphNode& of_shortcut = layers_->FirstNode(layers_->At(shortcut));
  const GraphNode& in = layers_->Node(of_conv.inputs[0]);
  const GraphNode& shortcut_in = layers_->Node(of_shortcut.inputs[0]);
  const int64_t num_products =
      int64_t{std::get<SparseConvOp>(of_conv.op).geometry().NumOffsets()} * in.channels + shortcut_in.channels;
  return in.channels % kernels::kInt8ChannelAlignment == 0 &&
         shortcut_in.channels % kernels::kInt8ChannelAlignment == 0 && num_products <= kernels::kMaxInt8Products &&
         NumberTypeOf(layers_->LayerOf(of_conv.inputs[0])) == NumberTypeOf(layers_->LayerOf(of_shortcut.inputs[0]));
}

bool Int8Types::HasScales(int node) const {
  const std::vector<int> parts = Int8PartsOf(layers_->graph(), node);
  return std::all_of(parts.begin(), parts.end(), [&](int part) { return layers_->Node(part).scale > 0; });
}

// Goes backwards, since the layers that read a value stand after it.
void Int8Types::FindStored() {
  if (layers_ == nullptr) return;
  is_stored_.resize(multiplies_.size());
  for (int i = layers_->size() - 1; i >= 0; --i) {
    const Layer& layer = layers_->At(i);
    const auto* const concat = std::get_if<ConcatOp>(&layers_->FirstNode(layer).op);
    const bool is_of_one_level = concat != nullptr && concat->rulebooks.empty();
    if (!Multiplies(i) && !is_of_one_level) continue;  // no other layer can write in 8 bits
    if (layers_->IsOutput(layer.result_node) || layers_->DecidesSites(layer.result_node)) continue;
    const std::vector<int>& readers = layers_->ReadersOf(layer);
    is_stored_[static_cast<size_t>(i)] = std::any_of(readers.begin(), readers.end(), [&](int node) {
      const int reader = layers_->LayerOf(node);
      if (Multiplies(reader)) return IsMultipliedBy(node, layer);
      return std::holds_alternative<ConcatOp>(layers_->FirstNode(layers_->At(reader)).op) && IsStored(reader);
    });
  }
}

bool Int8Types::IsMultipliedBy(int node, const Layer& layer) const {
  const int reader = layers_->LayerOf(node);
  return Multiplies(reader) && layers_->FirstNode(layers_->At(reader)).inputs[0] == layer.result_node;
}

bool Int8Types::IsOnlyMultiplied(int layer) const {
  if (layers_ == nullptr) return false;
  const Layer& of_value = layers_->At(layer);
  const std::vector<int>& readers = layers_->ReadersOf(of_value);
  return !layers_->IsOutput(of_value.result_node) &&
         std::all_of(readers.begin(), readers.end(), [&](int node) { return IsMultipliedBy(node, of_value); });
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
