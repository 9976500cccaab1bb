#pragma once

// The instances of the implicit GEMM kernels and their blocks. Each factor type has its own source file, since the
// kernels take long to compile. Only .cu files include this header.

#include <cstdint>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"

namespace voxserve::kernels::cuda {

// Convolutions with at most so many offsets have short tiles: strided and inverse ones of 2 x 2 x 2 cells.
inline constexpr int32_t kFewOffsets = 8;

// Returns whether blocks with so many columns are offered. Wider blocks would compute columns without channels; much
// narrower blocks would read the inputs too often.
constexpr bool HasColumnsFor(int32_t out_channels, int32_t columns) {
  const bool is_too_wide = columns > kOutChannelPadding && columns / 2 >= out_channels;
  const bool is_too_narrow = int64_t{columns} * 8 <= out_channels && columns < 128;
  return !is_too_wide && !is_too_narrow;
}

// Kernels of warp groups. cudaErrorInvalidValue for a block that is not in WarpGroupBlocks.
std::vector<ConvBlock> WarpGroupBlocks(int32_t out_channels);
cudaError_t WarpGroupImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpGroupImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);

// Kernels of single warps, from sm_80 on. The first block is the default. float32 factors are rounded to
// TensorFloat-32. cudaErrorInvalidValue for a block that is not in WarpBlocks.
std::vector<ConvBlock> WarpBlocks(int32_t out_channels);
cudaError_t WarpImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmTf32(const ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
