#pragma once

// The kernels of kernels/conv/implicit_gemm/implicit_gemm.h and the blocks that they have. Kernels have a source file
// for each type of factors, since they take long to compile. Included by .cu files alone.

#include <cstdint>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"

namespace voxserve::kernels::cuda {

// Whether blocks of so many columns are offered. Wider ones would have columns without channels, those that are much
// narrower would read the inputs often.
constexpr bool HasColumnsFor(int32_t out_channels, int32_t columns) {
  const bool is_too_wide = columns > kOutChannelPadding && columns / 2 >= out_channels;
  const bool is_too_narrow = int64_t{columns} * 4 <= out_channels && columns < 128;
  return !is_too_wide && !is_too_narrow;
}

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
