#pragma once

// MergeConv2ds merges small convolutions of images into larger ones. A head of CenterPoint has six branches for each of
// six tasks, and each branch is too small to fill a GPU.
//
//  - Convolutions that read the same value become one convolution with their output channels side by side, if they
//    agree in geometry, input channels, activation, result type and the outputs that need them.
//  - Convolutions that read neighbouring columns of such a result, and agree in the same properties, become one grouped
//    convolution in which each of them is a group. All groups are as wide as the widest; the weights of added channels
//    are 0, and no layer reads these channels.
//
// Each convolution's result stays the same. Convolutions with a residual, with groups, transposed convolutions, and
// convolutions whose result a concatenation reads are not merged.

#include <vector>

#include "engine/compiler/layers.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

// Appends the merged layers, and stores the members in them (Layer::stored_in).
void MergeConv2ds(Layers& layers);

// FoldedConv2d is a convolution of images that one kernel call computes.
struct FoldedConv2d {
  kernels::Conv2dGeometry geometry;
  std::vector<float> weights;  // in PyTorch's order (Conv2dOp::weight), batch norms folded in
  std::vector<float> bias;     // [out channels]; empty: 0
};
// Returns the convolution of a layer that begins with a Conv2dOp. For a merged layer it is the merged convolution of
// all members.
FoldedConv2d FoldConv2d(const Layers& layers, const Layer& layer);

}  // namespace voxserve
