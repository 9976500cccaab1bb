#pragma once

// Int8Types decides which layers of a program multiply in 8 bits, and which values are stored in 8 bits (a CPU with
// PRECISION_INT8).
//
// - A layer multiplies in 8 bits if it is an Int8Layer (int8_values.h), all values that it reads have scales, and its
//   first node is not one of float_nodes.
// - The value of such a layer is stored in 8 bits if another such layer multiplies it, alone or in a concatenation, and
//   it is no output and decides about no sites. A concatenation is stored in 8 bits if such a layer multiplies it; its
//   parts keep scales of their own, by channel, since scales of inputs become part of the reader's weights. So no part
//   is rounded coarsely because another one has larger values.
// - All other values are float32. A reader that needs another type than a value is stored in reads a converted copy
//   (StepEmitter); the residual of a layer in 8 bits is read as it is stored.

#include <string>
#include <vector>

#include "engine/compiler/layers.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

// Returns true for the types of values in 8 bits. The labels' kUint8 is one of them: ask only for features.
constexpr bool IsInt8(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kInt8; }

class Int8Types {
 public:
  Int8Types() = default;  // nothing is in 8 bits
  // layers: without merged layers. They must outlive the object.
  Int8Types(const Layers& layers, const std::vector<std::string>& float_nodes);

  // Returns true if the layer multiplies in 8 bits.
  bool Multiplies(int layer) const { return IsTrue(multiplies_, layer); }
  // Returns true if the layer's value is stored in 8 bits, in its NumberTypeOf.
  bool IsStored(int layer) const { return IsTrue(is_stored_, layer); }
  // Returns the type of the layer's value in 8 bits: kUint8 if it cannot be negative, else kInt8.
  DType NumberTypeOf(int layer) const;
  // Returns the scale of each channel of the layer's value in 8 bits. Every part of the value must have a scale. dtype:
  // the NumberTypeOf of the layer, or of a concatenation that the layer's value is a part of.
  std::vector<float> ScalesOf(int layer, DType dtype) const;

 private:
  static bool IsTrue(const std::vector<bool>& flags, int layer) {
    return !flags.empty() && flags[static_cast<size_t>(layer)];
  }
  bool HasScales(int node) const;
  void FindStored();

  const Layers* layers_ = nullptr;
  std::vector<bool> is_non_negative_;  // by node
  std::vector<bool> multiplies_;       // by layer; empty: nothing is in 8 bits
  std::vector<bool> is_stored_;        // by layer
};

}  // namespace voxserve
