#pragma once

// MergeConv2ds merges small convolutions of images into larger ones. A head of CenterPoint has six branches for each of
// six tasks, and each branch is too small to fill a GPU.
//
//  - Convolutions that read the same value and agree in geometry, activation and the outputs that need them become one
//    convolution with their output channels side by side.
//  - Convolutions that read neighbouring columns of such a result, and agree in the same way, become one convolution
//    with one group for each. All groups are as wide as the widest; added channels are 0, and no layer reads them.
//
// The results stay the same. These are not merged: convolutions with a residual, with groups, transposed ones, and
// those that write into a concatenation in place.

#include <vector>

#include "engine/compiler/layers.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

void MergeConv2ds(Layers& layers);

// FoldedConv2d is a convolution of images that one kernel call computes.
struct FoldedConv2d {
  kernels::Conv2dGeometry geometry;
  std::vector<float> weights;  // as PyTorch stores them, batch norms folded in
  std::vector<float> bias;     // [out channels]; empty: 0
};
// Returns the convolution of a layer that begins with a Conv2dOp: its own, or that of all its members.
FoldedConv2d FoldConv2d(const Layers& layers, const Layer& layer);

}  // namespace voxserve
