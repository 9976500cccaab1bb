#pragma once

// FuseShortcuts lets a sparse convolution compute the shortcut of its residual block: the row product of the block's
// input (row_products.h) that is added to the convolution's result. On a GPU, and in 8 bits on the CPU too, one kernel
// then adds both sums before it stores them (kernels/conv/implicit_gemm/implicit_gemm.h), which saves a pass over the
// rows.
//
// A pair is fused if nothing but the addition reads the earlier of the two, if no activation lies between, if the row
// product's input is known when the convolution runs, if the sum has the type of the features, and if the types of both
// allow it (Int8Types::MayShareSums).

#include <functional>

#include "engine/compiler/layers.h"

namespace voxserve {

// Sets Layer::shortcut where a pair can be fused. may_share_sums(conv, shortcut): whether the types of two layers allow
// it.
void FuseShortcuts(const std::function<bool(int, int)>& may_share_sums, Layers& layers);

}  // namespace voxserve
