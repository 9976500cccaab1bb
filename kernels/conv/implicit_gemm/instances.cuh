#pragma once

// This header declares the instances of the implicit GEMM kernels and lists the blocks that they serve. Each type of
// inputs and weights has a source file of its own, since the kernels take long to compile. Only .cu files include this
// header.

#include <cstdint>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/conv/int8_epilogue.h"

namespace voxserve::kernels::cuda {

// A convolution with at most this many kernel offsets has short tiles, which take few stages each. Strided and inverse
// convolutions of 2 x 2 x 2 cells are the common case.
inline constexpr int32_t kFewOffsets = 8;

constexpr int32_t NumTilesOfColumns(int32_t out_channels, int32_t columns) {
  return (out_channels + columns - 1) / columns;
}

// Returns the columns of blocks, at least 128 each, that gather each input row no more often than blocks of 256 columns
// do, and leave the fewest columns without a channel.
constexpr int32_t ColumnsOfFewestTiles(int32_t out_channels) {
  for (const int32_t columns : {128, 160, 192}) {
    if (NumTilesOfColumns(out_channels, columns) == NumTilesOfColumns(out_channels, 256)) return columns;
  }
  return 256;
}

// Returns the columns of blocks that leave the fewest columns without a channel: 128, 160 or 192.
constexpr int32_t ColumnsOfFewestEmpty(int32_t out_channels) {
  int32_t best = 128;
  for (const int32_t columns : {160, 192}) {
    if (NumTilesOfColumns(out_channels, columns) * columns < NumTilesOfColumns(out_channels, best) * best) {
      best = columns;
    }
  }
  return best;
}

// Returns true if blocks with this many columns are offered. Wider blocks would compute columns without channels; much
// narrower blocks would read the inputs too often. Blocks of 160 and 192 columns are offered where they may be the
// default.
constexpr bool HasColumnsFor(int32_t out_channels, int32_t columns) {
  if (columns == 160 || columns == 192) {
    return columns == ColumnsOfFewestTiles(out_channels) || columns == ColumnsOfFewestEmpty(out_channels);
  }
  const bool is_too_wide = columns > kOutChannelPadding && columns / 2 >= out_channels;
  const bool is_too_narrow = int64_t{columns} * 8 <= out_channels && columns < 128;
  return !is_too_wide && !is_too_narrow;
}

// Kernels of warp groups, for code of sm_90a. They return cudaErrorInvalidValue for a block that has no code for the
// type of the inputs, and for split K without counters or a workspace. dtype: the type of the inputs.
std::vector<ConvBlock> WarpGroupBlocks(DType dtype, int32_t out_channels);
cudaError_t WarpGroupImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpGroupImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);
// The same with inputs of 8 bits. The epilogue of params is not read.
cudaError_t WarpGroupImplicitGemmUint8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue,
                                       cudaStream_t stream);
cudaError_t WarpGroupImplicitGemmInt8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue,
                                      cudaStream_t stream);

// Kernels of single warps, from sm_80 on. The first block of WarpBlocks is the default. float32 inputs and weights are
// rounded to TensorFloat-32. The kernels return cudaErrorInvalidValue for a block that is not in WarpBlocks.
std::vector<ConvBlock> WarpBlocks(int32_t out_channels);
// Calls one of the three functions below, by the dtype of the input.
cudaError_t WarpImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream);
cudaError_t WarpImplicitGemmTf32(const ImplicitGemmParams& params, cudaStream_t stream);
// The same with inputs of 8 bits, whose blocks are the same. The epilogue of params is not read.
cudaError_t WarpImplicitGemmUint8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue, cudaStream_t stream);
cudaError_t WarpImplicitGemmInt8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
