#pragma once

// Int8Types decides which layers of a program multiply in 8 bits, and which values are stored in 8 bits
// (PRECISION_INT8).
//
// - A layer multiplies in 8 bits if it is an Int8Layer (int8_values.h), all values that it reads have scales, and its
//   first node is not one of float_nodes. On a GPU a convolution of images does so only if no other convolution of the
//   same geometry reads its input, or if it is transposed. If it has several cells, the GPU must also have the kernel
//   for images, the kernel must serve it (kernels/image/int8/int8_im2col.h), and it must have more than 32 output
//   channels.
// - The value of such a layer is stored in 8 bits if another such layer multiplies it, alone or in a concatenation, and
//   it is no output and decides about no sites. A concatenation is stored in 8 bits if such a layer multiplies it; its
//   parts keep scales of their own, by channel, since scales of inputs become part of the reader's weights. So no part
//   is rounded coarsely because another one has larger values.
// - All other values are floats: float32 on the CPU, float16 on a GPU. A reader that needs another type than a value is
//   stored in reads a converted copy (StepEmitter); the residual of a layer in 8 bits is read as it is stored. The
//   voxels' features are float32 on a GPU too, if only layers in 8 bits read them: a network without layers of floats
//   then has the same bytes on both devices.

#include <string>
#include <vector>

#include "engine/compiler/layers.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

struct CompileTarget;

// Returns true for the types of values in 8 bits. The labels' kUint8 is one of them: ask only for features.
constexpr bool IsInt8(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kInt8; }

class Int8Types {
 public:
  Int8Types() = default;  // nothing is in 8 bits
  // Decides which layers multiply. layers: without merged layers and fused shortcuts. They must outlive the object.
  Int8Types(const Layers& layers, const CompileTarget& target);

  // Returns true if the layer multiplies in 8 bits. A merged layer does not.
  bool Multiplies(int layer) const { return IsTrue(multiplies_, layer); }
  // Returns true if a convolution's sums may have the products of its shortcut added (FuseShortcuts). In 8 bits both
  // then have one scale for each output channel, and on every device the same bytes.
  bool MayShareSums(int conv, int shortcut) const;

  // Decides which values are stored in 8 bits. Call it once, after shortcuts were fused and before products are merged.
  void FindStored();
  // Returns true if the layer's value is stored in 8 bits, in its NumberTypeOf.
  bool IsStored(int layer) const { return IsTrue(is_stored_, layer); }
  // Returns true if only layers that multiply in 8 bits read the value of a layer that does not.
  bool IsOnlyMultiplied(int layer) const;
  // Returns the type of the layer's value in 8 bits: kUint8 if it cannot be negative, else kInt8.
  DType NumberTypeOf(int layer) const;
  // Returns the scale of each channel of the layer's value in 8 bits. Every part of the value must have a scale. dtype:
  // the NumberTypeOf of the layer, or of a concatenation that the layer's value is a part of.
  std::vector<float> ScalesOf(int layer, DType dtype) const;

 private:
  static bool IsTrue(const std::vector<bool>& flags, int layer) {
    return static_cast<size_t>(layer) < flags.size() && flags[static_cast<size_t>(layer)];
  }
  bool HasScales(int node) const;
  // Returns true if the node's layer multiplies this layer's value in 8 bits.
  bool IsMultipliedBy(int node, const Layer& layer) const;

  const Layers* layers_ = nullptr;
  bool on_cuda_ = false;
  std::vector<bool> is_non_negative_;  // by node
  std::vector<bool> multiplies_;       // by layer; empty: nothing is in 8 bits
  std::vector<bool> is_stored_;        // by layer
};

}  // namespace voxserve
