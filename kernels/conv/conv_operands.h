#pragma once

// The matrices of a sparse convolution, which all dataflows (ways to compute it) share: out[o] = epilogue(sum over
// pairs (k, i, o) of in[i] W_k). A pair (k, i, o) says that output row o reads input row i at kernel offset k. The
// params of each dataflow hold these operands and a view of the rulebook, which gives the pairs.

#include <type_traits>

#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct ConvOperands {
  ConstRows in;                   // [num_in_rows, in channels]
  Rows out;                       // [num_out_rows, out channels]; must not overlap `in`, may be the residual itself
  const void* weights = nullptr;  // [K, in channels, out channels] in in.dtype, packed as the dataflow needs them
  Epilogue epilogue;              // residual in in.dtype
  // A linear layer on the output's rows, as in the shortcut of a residual block whose input has other channels than its
  // output (He et al., Deep Residual Learning, CVPR 2016, equation 2). Its sums are added to the convolution's, slice
  // by slice after them: out[o] = epilogue(sum + shortcut_in[o] W). Implicit GEMM alone reads it.
  ConstRows shortcut_in;                   // [num_out_rows, shortcut channels] in in.dtype; null data: none
  const void* shortcut_weights = nullptr;  // PackImplicitGemmWeights of one offset, 128-byte aligned
};
static_assert(std::is_trivially_copyable_v<ConvOperands>);

}  // namespace voxserve::kernels
