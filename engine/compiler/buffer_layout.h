#pragma once

// BufferLayout assigns a buffer, or columns of one, to the value of every layer. A buffer is alive from the first step
// that writes it to the last step that reads it. Steps may add further buffers. The compiler makes one BufferLayout for
// each program.
//
// An input of a concatenation is written directly into its columns of the result's buffer. These inputs are copied
// instead: an input that is written into another concatenation already, that is the voxelize's result, that has other
// rows or another type than the result, or whose columns would not be aligned as an MLP's kernel needs them. So is on a
// GPU an input in 8 bits whose rows would not begin at multiples of 16 bytes: most kernels read and write such rows
// slowly, and those that add shortcuts or compute convolutions of images do not read them at all.

#include <cstdint>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_types.h"
#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class BufferLayout {
 public:
  // Adds the layers' buffers to the program. The program's steps must be made after that. int8_types: which values are
  // in 8 bits. All arguments must outlive the layout.
  BufferLayout(const CompileTarget& target, DType label_dtype, const Int8Types& int8_types, Layers& layers,
               Program& program);

  // Returns where a layer's value lies. The layer must have a buffer, its own or another layer's.
  BufferSlice SliceOf(int layer) const;
  // Each returns where a layer's value lies, and extends the life of its buffer to the step that is pushed next.
  BufferSlice UseBuffer(int layer);
  BufferSlice UseBuffer(const BufferSlice& slice);
  // Adds a buffer that belongs to no layer, and returns a slice with all its columns. Sets the buffer's pitch, and
  // marks it as not touched yet.
  BufferSlice Add(Buffer buffer);
  // Gives a buffer that Add has added another number of columns.
  void Resize(int buffer, int32_t channels);

  DType DTypeOf(int layer) const;  // of the buffer in which the layer's value lies

  // True once a step has touched the layer's value. The layer must have a buffer of its own.
  bool IsUsed(int layer) const { return BufferOf(layer).first_step >= 0; }
  int32_t ColumnsOf(const Layer& layer) const {
    return layer.members.empty() ? layers_.Node(layer.result_node).channels : layer.num_columns;
  }

 private:
  void PlaceConcats();
  // Returns true if a kernel needs the value's rows aligned to 16 bytes: that of an MLP (layer_fusion.h).
  bool NeedsAlignedRows(int index) const;
  const Buffer& BufferOf(int layer) const {
    return program_.buffers[static_cast<size_t>(buffer_of_[static_cast<size_t>(layer)])];
  }

  const CompileTarget& target_;
  const DType label_dtype_;
  const Int8Types& int8_types_;
  Layers& layers_;
  Program& program_;
  std::vector<int> buffer_of_;  // by layer; -1: it has no buffer of its own
};

}  // namespace voxserve
