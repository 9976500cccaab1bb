#pragma once

// Convolutions of images that are computed as one: a head of CenterPoint has six branches for each of six tasks, each
// too small to fill a GPU.
//
//  - Those that read the same value in the same way (geometry, activation, who needs them) become one convolution,
//    their output channels side by side.
//  - Those that each read their own columns of such a result, neighbours and in the same way, become one convolution
//    of as many groups. All groups are as wide as the widest; what is added is 0 and read by nobody.
//
// The results stay the same. Left alone are convolutions with a residual, those of groups of their own,
// transposed ones, and those whose value a concatenation has in place.

#include <vector>

#include "engine/compiler/layers.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

void MergeConv2ds(Layers& layers);

// A convolution of images as one kernel call computes it.
struct FoldedConv2d {
  kernels::Conv2dGeometry geometry;
  std::vector<float> weights;  // as PyTorch stores them, batch norms folded in
  std::vector<float> bias;     // [out channels]; empty: 0
};
// The convolution of a layer that begins as a Conv2dOp: alone, or merged with all its members.
FoldedConv2d FoldConv2d(const Layers& layers, const Layer& layer);

}  // namespace voxserve
