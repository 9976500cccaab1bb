#pragma once

// MergeProducts merges small products into larger ones: convolutions of images, and linear layers, which are
// convolutions of one cell. A head of CenterPoint has six branches for each of six tasks, and each branch is too small
// to fill a GPU; a transformer block has a linear layer each for queries, keys and values.
//
//  - Products that read the same value become one product with their output channels side by side, if they agree in
//    geometry, input channels, activation, result type and the outputs that need them. Those whose result is rotated
//    (Layer::rotary) come first, and must agree in how it is.
//  - Convolutions that read neighbouring columns of such a result, and agree in the same properties, become one grouped
//    convolution in which each of them is a group. All groups are as wide as the widest; the weights of added channels
//    are 0, and no layer reads these channels.
//
// Each product's result stays the same. Products with a residual, with groups, transposed convolutions, shortcuts that
// a convolution computes, parts of MLPs that one kernel computes, what such MLPs read, and products whose result a
// concatenation or an argmax reads are not merged: a linear layer can write its labels without its values (LinearStep).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/compiler/layers.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

// Appends the merged layers, and stores the members in them (Layer::stored_in). is_left_out(layer): true for layers
// that stay as they are.
void MergeProducts(const std::function<bool(int)>& is_left_out, Layers& layers);

// Returns the place of a channel after the channels of the pairs that a rotary rotates (kernels/rows/rotary.h) are
// brought beside each other. pairs: in the chunk of an axis.
constexpr size_t PairedChannel(size_t channel, size_t pairs) {
  const size_t in_chunk = channel % (2 * pairs);
  return channel - in_chunk + (in_chunk < pairs ? 2 * in_chunk : 2 * (in_chunk - pairs) + 1);
}

// Returns the pairs in the chunk of an axis of a rotated layer.
int32_t RotatedPairs(const Layers& layers, const Layer& layer);

// FoldedProduct is a product that one kernel call computes.
struct FoldedProduct {
  kernels::Conv2dGeometry geometry;
  std::vector<float> weights;  // in PyTorch's order (Conv2dOp::weight), batch norms folded in
  std::vector<float> bias;     // [out channels]; empty: 0
};
// Returns the product of a layer that begins with a Conv2dOp or LinearOp. For a merged layer it is the merged product
// of all members. The output channels of a rotated layer stand in the order of PairedChannel.
FoldedProduct FoldProduct(const Layers& layers, const Layer& layer);

}  // namespace voxserve
