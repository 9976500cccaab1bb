#pragma once

// The implicit GEMM with layer norms in its epilogue: a transformer block's x_new = x + LayerNorm(convolution(x)) and
// LayerNorm(x_new) in one kernel. Where a block holds whole rows, the sums of a row lie in the registers of four
// neighbouring threads, so they compute its mean and variance before they store it.
//
// The bytes are those of ImplicitGemm and NormalizeRows (rows/row_norm.h): a result is rounded before it is normalized,
// and values are added in the same order. So a caller may choose either by the block, and batches do not matter.

#include <cstdint>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/rows/row_norm.h"

namespace voxserve::kernels {

// Returns true if blocks can hold whole rows of so many channels.
constexpr bool HasNormedRows(int32_t channels) {
  return channels == 32 || channels == 64 || channels == 128 || channels == 256;
}

namespace cuda {

// Returns true if one kernel can compute the convolution and the norm of its result. These are the kernels of warp
// groups with a block that holds whole rows: 32 or 256 output channels (and 64 rows), 64 or 128, in as many columns,
// without split K. All types must be that of the input, and all rows aligned to 16 bytes. The convolution must have no
// residual, no labels and no rotation, and neither it nor the norm an activation. norm.in and params.operands.out.data
// are not read.
bool ImplicitGemmNorms(const ImplicitGemmParams& params, const RowNormParams& norm);

// Queues the convolution and its norm on `stream`, and does not write params.operands.out. norm.out and norm.second.out
// must not overlap operands.in or the shortcut's input; the norm's residual may be norm.out itself. Starts early like ImplicitGemm; the predecessor must not write
// the weights and biases of the norms either. Returns cudaErrorInvalidValue for what ImplicitGemm refuses, and if
// ImplicitGemmNorms is false.
cudaError_t NormedImplicitGemm(const ImplicitGemmParams& params, const RowNormParams& norm, cudaStream_t stream);

// The kernels of warp groups, for a block that ImplicitGemmNorms serves.
cudaError_t WarpGroupNormedImplicitGemm(const ImplicitGemmParams& params, const RowNormParams& norm,
                                        cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
