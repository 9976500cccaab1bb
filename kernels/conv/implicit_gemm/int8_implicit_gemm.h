#pragma once

// Sparse convolution by implicit GEMM on a GPU in 8 bits: the kernel of implicit_gemm.h for inputs of uint8 or int8 and
// weights of int8. Sums are int32 and exact, so every block, also with split K, gives the same bytes. The epilogue
// (conv/int8_epilogue.h) rounds them once, with the bytes that products in 8 bits on a CPU have (kernels/int8).
//
// A slice has 32 channels (slices.h). On Hopper warp groups multiply (wgmma); other GPUs from sm_80 on, and blocks with
// uses_mma_sync, use products of single warps (mma.sync).

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_block.h"
#include "kernels/conv/int8_epilogue.h"
#include "kernels/conv/tiles.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels {

struct Int8ImplicitGemmParams {
  TilesView tiles;                // as of ImplicitGemmParams
  ConstRows in;                   // [num_in_rows, in_channels] uint8 or int8
  const void* weights = nullptr;  // PackInt8ImplicitGemmWeights, 128-byte aligned
  // [num_out_rows, out_channels] uint8, int8, float16 or float32. Stores are fast for channels that are a multiple of
  // 8, in 8 or 16 bits, with rows and arrays at multiples of 16 bytes, no activation but ReLU, and no inverse_scale.
  Rows out;
  Int8Epilogue epilogue;  // arrays on the GPU; the residual may be `out` if their types have the same size
  // The shortcut of ConvOperands, in the type of `in`. Its sums are added to the convolution's before the epilogue, so
  // both have one scale for each output channel. Null data: none.
  ConstRows shortcut_in;
  const void* shortcut_weights = nullptr;  // PackInt8ImplicitGemmWeights of one offset, 128-byte aligned
  ConvBlock block;                         // one of Int8ImplicitGemmBlocks; 0 rows: a default without split K
  void* workspace = nullptr;               // Int8ImplicitGemmWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<Int8ImplicitGemmParams>);

// Packs weights [num_offsets, in_channels, out_channels] in the order in which Int8ImplicitGemm reads them.
std::vector<int8_t> PackInt8ImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels,
                                                const int8_t* weights);

namespace cuda {

// Returns the blocks that the current GPU supports; none if it does not multiply in 8 bits.
std::vector<ConvBlock> Int8ImplicitGemmBlocks(int32_t out_channels);

// Returns the size of the workspace; 0 without split K.
size_t Int8ImplicitGemmWorkspaceBytes(const Int8ImplicitGemmParams& params);

// Queues the convolution on `stream`. ImplicitGemm (implicit_gemm.h) says what its predecessor on the stream may write;
// the predecessor must not write the epilogue's arrays either.
//
// Returns cudaErrorInvalidValue for
// - a block that the GPU does not support, or a GPU that supports none;
// - split K without tiles.counters or without a workspace;
// - types other than those above, or no multiplier;
// - a shortcut of another type than the input, without tiles, or with rows that are not whole vectors of 16 bytes;
// - sums of no products or of more than kMaxInt8Products, and sizes above the limits of ImplicitGemm.
cudaError_t Int8ImplicitGemm(const Int8ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
