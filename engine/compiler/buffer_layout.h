#pragma once

// BufferLayout assigns buffers to the layers' values. Every value has one buffer, which is alive from the step that
// writes it to the last step that reads it; steps may add further buffers. An input of a concatenation is written
// directly into its columns of the result, unless it is already written into another concatenation.

#include <cstdint>
#include <vector>

#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class BufferLayout {
 public:
  // Adds the layers' buffers to the program; its steps are made after that. dtype: the type of features. layers and
  // program outlive the layout.
  BufferLayout(DType dtype, DType label_dtype, Layers& layers, Program& program);

  // Return where a layer's value lies, and extend its buffer's life to the next step.
  BufferSlice Touch(int layer);
  BufferSlice Touch(const BufferSlice& slice);
  // Adds a buffer that belongs to no layer, and returns all of it. Sets its pitch and steps.
  BufferSlice Add(Buffer buffer);

  // True once a step has touched the layer's value. The layer must have a buffer of its own.
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
  std::vector<int> buffer_of_;  // by layer; -1: it has no buffer of its own
};

}  // namespace voxserve
