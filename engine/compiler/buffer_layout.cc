#include "engine/compiler/buffer_layout.h"

#include <algorithm>

namespace voxserve {
namespace {

constexpr int64_t kRowAlignmentBytes = 16;
constexpr int32_t kAlignedColumns = 8;  // of 16 bits

int64_t PaddedPitch(int64_t channels, DType dtype) {
  const int64_t alignment = kRowAlignmentBytes / SizeOf(dtype);
  return (channels + alignment - 1) / alignment * alignment;
}

}  // namespace

BufferLayout::BufferLayout(const CompileTarget& target, DType label_dtype, const Int8Types& int8_types, Layers& layers,
                           Program& program)
    : target_(target), label_dtype_(label_dtype), int8_types_(int8_types), layers_(layers), program_(program) {
  PlaceConcats();
  buffer_of_.assign(static_cast<size_t>(layers_.size()), -1);
  for (int index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_.At(index);
    if (layer.stored_in >= 0 || layer.is_shortcut || layer.is_in_mlp || layers_.IsMadeByAnswer(layer.result_node))
      continue;
    if (layers_.LayerOf(layer.result_node) != index && layer.members.empty()) continue;  // a rotary of a linear layer
    const GraphNode& node = layers_.Node(layer.result_node);
    buffer_of_[static_cast<size_t>(index)] = Add({.level = node.level,
                                                  .rows_per_sample = node.rows_per_sample(),
                                                  .dtype = DTypeOf(index),
                                                  .channels = ColumnsOf(layer)})
                                                 .buffer;
  }
}

void BufferLayout::PlaceConcats() {
  for (int index = 0; index < layers_.size(); ++index) {
    const GraphNode& concat = layers_.FirstNode(layers_.At(index));
    if (!std::holds_alternative<ConcatOp>(concat.op)) continue;
    // Inputs of another type cannot be written in place: the copy converts them.
    const DType dtype = DTypeOf(index);
    const bool is_int8 = int8_types_.IsStored(index);
    if (dtype != target_.dtype && !is_int8) continue;
    int32_t column = 0;
    for (const int node : concat.inputs) {
      const int of_node = layers_.LayerOf(node);
      Layer& input = layers_.At(of_node);
      // The voxelize kernel writes its rows' padding, so it needs a whole buffer.
      const bool is_unaligned = is_int8 && target_.on_cuda && column * SizeOf(dtype) % kRowAlignmentBytes != 0;
      if (input.stored_in < 0 && !is_unaligned && !std::holds_alternative<VoxelizeOp>(layers_.FirstNode(input).op) &&
          (column % kAlignedColumns == 0 || !NeedsAlignedRows(of_node)) && DTypeOf(of_node) == dtype &&
          layers_.Node(node).HasRowsOf(concat)) {
        input.stored_in = index;
        input.column = column;
      }
      column += layers_.Node(node).channels;
    }
  }
}

bool BufferLayout::NeedsAlignedRows(int index) const {
  const Layer& layer = layers_.At(index);
  const std::vector<int>& readers = layers_.ReadersOf(layer);
  if (layer.mlp || std::any_of(readers.begin(), readers.end(), [&](int node) { return layers_.IsOfMlp(node); })) {
    return true;
  }
  if (!std::holds_alternative<ConcatOp>(layers_.FirstNode(layer).op)) return false;
  const std::vector<int> inputs = layers_.InputsOf(layer);
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](int input) { return layers_.At(input).stored_in == index && NeedsAlignedRows(input); });
}

DType BufferLayout::DTypeOf(int index) const {
  if (int8_types_.IsStored(index)) return int8_types_.NumberTypeOf(index);
  const Layer& layer = layers_.At(index);
  const GraphNode& node = layers_.Node(layer.result_node);
  if (node.is_labels) return label_dtype_;
  if (node.max_boxes > 0 || node.is_selection) return DType::kFloat32;
  if (std::holds_alternative<VoxelizeOp>(layers_.FirstNode(layer).op) && int8_types_.IsOnlyMultiplied(index)) {
    return DType::kFloat32;  // it is converted once, from the values that the CPU has
  }
  return layers_.StaysFloat32(layer) ? DType::kFloat32 : target_.dtype;
}

BufferSlice BufferLayout::SliceOf(int layer) const {
  BufferSlice slice{.channels = ColumnsOf(layers_.At(layer))};
  while (layers_.At(layer).stored_in >= 0) {
    slice.column += layers_.At(layer).column;
    layer = layers_.At(layer).stored_in;
  }
  slice.buffer = buffer_of_[static_cast<size_t>(layer)];
  return slice;
}

BufferSlice BufferLayout::UseBuffer(int layer) { return UseBuffer(SliceOf(layer)); }

BufferSlice BufferLayout::UseBuffer(const BufferSlice& slice) {
  Buffer& buffer = program_.buffers[static_cast<size_t>(slice.buffer)];
  const int step = static_cast<int>(program_.steps.size());
  if (buffer.first_step < 0) buffer.first_step = step;
  buffer.last_step = step;
  return slice;
}

BufferSlice BufferLayout::Add(Buffer buffer) {
  const bool is_label = buffer.dtype == label_dtype_ && buffer.channels == 1;
  buffer.pitch = is_label ? buffer.channels : PaddedPitch(buffer.channels, buffer.dtype);
  buffer.first_step = -1;
  buffer.last_step = -1;
  program_.buffers.push_back(buffer);
  return {.buffer = static_cast<int>(program_.buffers.size()) - 1, .channels = buffer.channels};
}

void BufferLayout::Resize(int buffer, int32_t channels) {
  Buffer& resized = program_.buffers[static_cast<size_t>(buffer)];
  resized.channels = channels;
  resized.pitch = PaddedPitch(channels, resized.dtype);
}

}  // namespace voxserve
