#pragma once

// The kernels of kernels/conv/implicit_gemm/implicit_gemm.h and the blocks that they have. Kernels have a source file
// for each type of factors, since they take long to compile. Included by .cu files alone.

#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"

namespace voxserve::kernels::cuda {

// By warp groups; cudaErrorInvalidValue for a block that is not in WarpGroupBlocks.
std::vector<ConvBlock> WarpGroupBlocks(int32_t out_channels);
cudaError_t WarpGroupImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpGroupImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);

// By warps, from sm_80 on; the first block is the default. float32 factors are rounded to TensorFloat-32.
// cudaErrorInvalidValue for a block that there is not.
std::vector<ConvBlock> WarpBlocks(int32_t out_channels);
cudaError_t WarpImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmTf32(const ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
