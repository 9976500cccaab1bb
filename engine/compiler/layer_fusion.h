#pragma once

// These functions let one kernel compute several layers, so that a GPU does not write a value and read it again in the
// next kernel. The compiler calls them in this order: MLPs take the norms beside them before norms are paired, and
// convolutions take norms after shortcuts.

#include <functional>

#include "engine/compiler/layers.h"

namespace voxserve {

// Finds the MLPs of transformer blocks and lets one kernel of a GPU compute each (kernels/rows/mlp/mlp.h):
//
//   [layer norm ->] row product, GELU or ReLU -> row product [+ residual] [-> layer norm [+ residual], up to 3 times]
//
// Row products are linear layers and convolutions of one cell (row_products.h). The values between them then need no
// buffer. An MLP is fused if
//  - neither of its products is left out,
//  - nothing else reads its hidden values, and no activation follows the second product,
//  - a kernel has its numbers of channels (MlpShapeOf),
//  - its result has the type of the features.
// The norm before it is fused if only the first product and the residual of the second one read its result. Norms
// behind it are fused as long as nothing else reads the values in between, and no activation follows them.
//
// Sets Layer::mlp and Layer::is_in_mlp. Call it before the functions below. is_left_out(layer): true for products that
// stay as they are.
void FuseMlps(const std::function<bool(int)>& is_left_out, Layers& layers);

// Lets a layer norm compute a layer norm of its result, as a transformer block has behind its convolution
// (kernels/rows/row_norm.h). Others may read the first result too. Sets Layer::second_norm.
//
// A pair is fused if nothing is fused into the second norm, if neither is part of an MLP that one kernel computes, and
// if both results have the type of the features. A layer norm computes one second norm, the first that reads it.
void FuseNorms(Layers& layers);

// Lets a sparse convolution compute the shortcut of its residual block: the row product of the block's input that is
// added to the convolution's result. On a GPU, and in 8 bits on the CPU too, one kernel then adds both sums before it
// stores them (kernels/conv/implicit_gemm/implicit_gemm.h), which saves a pass over the rows.
//
// A pair is fused if nothing but the addition reads the earlier of the two, if no activation lies between, if the row
// product's input is known when the convolution runs, if the product is no part of an MLP that one kernel computes, if
// the sum has the type of the features, and if the types of both allow it (Int8Types::MayShareSums).
//
// Sets Layer::shortcut. may_share_sums(conv, shortcut): whether the types of two layers allow it.
void FuseShortcuts(const std::function<bool(int, int)>& may_share_sums, Layers& layers);

// Lets a sparse convolution compute the layer norm of its result, as a transformer block has, and that norm's second
// norm. On Hopper one kernel does (kernels/conv/implicit_gemm/normed_implicit_gemm.h); elsewhere the step has two
// kernels. Sets Layer::norm. Call it after FuseNorms and FuseShortcuts.
//
// A pair is fused if only the norm reads the convolution's result, if a kernel has its number of channels, if the
// convolution adds no residual and neither of them has an activation, if the norm's residual is known when the
// convolution runs, and if all values have the type of the features.
void FuseConvNorms(Layers& layers);

// Lets linear layers rotate the queries and keys of an attention (kernels/conv/pair_rotation.h). The channels of a
// rotated pair then lie beside each other, which changes no dot product of queries and keys. Sets Layer::rotary.
//
// The two rotaries of an attention are fused together or not at all. They are if
//  - both have as many heads as the attention, which alone reads them, and not as its values;
//  - each rotates a linear layer that nothing else reads, that is not left out, and that adds no residual and has no
//    activation;
//  - their positions are computed before the linear layers' input, or are the sites' coordinates.
//
// is_left_out(layer): true for products that stay as they are.
void FuseRotaries(const std::function<bool(int)>& is_left_out, Layers& layers);

}  // namespace voxserve
