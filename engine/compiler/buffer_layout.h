#pragma once

// Where the layers' values live: the compiler's buffers. One per value, alive from the step that writes it to the last
// that reads it; steps may have further ones of their own. An input of a concatenation that stands in no other one is
// written straight into its columns.

#include <cstdint>
#include <vector>

#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class BufferLayout {
 public:
  // Adds the layers' buffers to the program, whose steps are made after that. dtype: of features. Both outlive the
  // layout.
  BufferLayout(DType dtype, DType label_dtype, Layers& layers, Program& program);

  // Where a layer's value lies; counts the next step as one that touches it.
  BufferSlice Touch(int layer);
  BufferSlice Touch(const BufferSlice& slice);
  // A buffer beside those of layers, whole; its pitch and steps are set here.
  BufferSlice Add(Buffer buffer);

  // True once a step has touched the layer's value, which has a buffer of its own.
  bool IsTouched(int layer) const { return BufferOf(layer).first_step >= 0; }
  int32_t ColumnsOf(const Layer& layer) const {
    return layer.members.empty() ? layers_.Node(layer.result_node).channels : layer.num_columns;
  }

 private:
  void PlaceConcats();
  DType DTypeOf(const Layer& layer) const;
  const Buffer& BufferOf(int layer) const {
    return program_.buffers[static_cast<size_t>(buffer_of_[static_cast<size_t>(layer)])];
  }

  const DType dtype_;
  const DType label_dtype_;
  Layers& layers_;
  Program& program_;
  std::vector<int> buffer_of_;  // by layer; -1: none of its own
};

}  // namespace voxserve
