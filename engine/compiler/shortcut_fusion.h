#pragma once

// FuseShortcuts lets a sparse convolution compute the shortcut of its residual block: the row product of the block's
// input (row_products.h) that is added to the convolution's result. On a GPU, one kernel then adds both sums before it
// stores them (kernels/conv/implicit_gemm/implicit_gemm.h), which saves a pass over the rows.
//
// A pair is fused if nothing but the addition reads the earlier of the two, if no activation lies between, if the row
// product's input is known when the convolution runs, and if the sum has the type of the features.

#include "engine/compiler/layers.h"

namespace voxserve {

// Sets Layer::shortcut where a pair can be fused.
void FuseShortcuts(Layers& layers);

}  // namespace voxserve
