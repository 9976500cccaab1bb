#pragma once

// Sparse convolution by implicit GEMM on a GPU, in one kernel: out[o] = epilogue(sum over pairs (k, i, o) of in[i]
// W_k). A pair (k, i, o) says that output row o reads input row i at kernel offset k.
//
// A thread block computes a tile of output rows and columns and keeps its sums in registers. It visits the kernel
// offsets at which the tile's rows have neighbours (tiles.h), gathers the input rows of these offsets to shared memory
// ahead of time, and multiplies them there. Only the input, the weights and the output move through memory. The host
// reads no size: the number of rows stays on the device.
//
// The axis that is summed over (kernel offsets times input channels) is cut into slices of 64 bytes of a row: 32
// channels of 16 bits, or 16 channels of 32 bits. A slice holds some of one offset's channels or, if a row is shorter,
// the channels of several offsets. The products of a sum are added slice by slice in ascending order. So the bytes of
// an output row depend neither on its tile nor on the run. Split K (ConvBlock::split_k) adds in another order: it adds
// two partial sums.
//
// On Hopper, in a build with code for sm_90a, 16-bit products are computed by warp groups (wgmma), and separate warps
// only copy. Other GPUs from sm_80 on, TensorFloat-32 everywhere, and blocks with uses_mma_sync use products of single
// warps (mma.sync).
//
// Sources: spconv 2 (mask implicit GEMM); Tang et al., TorchSparse++ (MICRO 2023), section 3; CUTLASS's example 52 (a
// gather by cp.async that feeds warp groups).

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_block.h"
#include "kernels/conv/conv_operands.h"
#include "kernels/conv/pair_rotation.h"
#include "kernels/conv/tiles.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

// ImplicitGemm can write the labels of at most this many channels.
inline constexpr int32_t kMaxLabelChannels = 32;

struct ImplicitGemmParams {
  // For K = 1, out_rows, masks and in_rows may all be null: output row o then reads input row o (a linear layer).
  TilesView tiles;
  // out: in.dtype or float32; weights: PackImplicitGemmWeights, 128-byte aligned; a shortcut only if
  // ImplicitGemmAddsShortcut.
  ConvOperands operands;
  ConvBlock block;            // one of ImplicitGemmBlocks; 0 rows: a default without split K
  void* workspace = nullptr;  // ImplicitGemmWorkspaceBytes, 256-byte aligned

  // If it has data, the kernel does not write operands.out but the label of each output row: the result of Argmax
  // (rows/argmax.h) on the row's float32 results. One channel of uint8 or uint16, packed. There may be no residual and
  // no activation, at most kMaxLabelChannels output channels, and `block` must be the default.
  Rows labels;
  int32_t not_finite_label = 0;  // must fit the labels' type

  // If it has angles, the kernel rotates pairs of columns. `out` must then have in.dtype, of 16 bits, and there may be
  // no residual, no activation and no labels. `block` must be the default, one that uses mma.sync, or one of 128
  // columns without split K.
  PairRotation rotation;
};
static_assert(std::is_trivially_copyable_v<ImplicitGemmParams>);

// Packs weights [num_offsets, in_channels, out_channels] in the order in which ImplicitGemm reads them when they are
// stored as `dtype`. The caller converts the values to `dtype`.
std::vector<float> PackImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                           const float* weights);

namespace cuda {

// Returns the blocks that the current GPU supports for inputs and weights of `dtype`; none if it supports no implicit
// GEMM of that type. float32 inputs and weights are rounded to TensorFloat-32.
std::vector<ConvBlock> ImplicitGemmBlocks(DType dtype, int32_t out_channels);

// Returns the size of the workspace, which split K needs for partial sums; 0 without split K. The size depends only on
// the block, tiles.out_capacity and the number of output channels.
size_t ImplicitGemmWorkspaceBytes(const ImplicitGemmParams& params);

// Returns true if the kernel for these params can add the shortcut of params.operands. These are the kernels of warp
// groups, for the tiles form and inputs whose rows are whole vectors of 16 bytes.
bool ImplicitGemmAddsShortcut(const ImplicitGemmParams& params);

// Queues the convolution on `stream`.
//
// A kernel of warp groups starts before its predecessor on the stream has ended. The predecessor may write features,
// residuals, angles, outputs and the counters of the tiles form. It must not write the other members of the tiles form,
// the weights or the bias. The last kernel of MakeTiles writes counters alone, so the GEMM starts after the others are
// done.
//
// Returns cudaErrorInvalidValue for
// - a block that the GPU does not support, or a GPU that supports none;
// - split K without tiles.counters or without a workspace;
// - types that do not belong together: out must have in.dtype or float32, a residual in.dtype;
// - labels with a residual, an activation, too many channels or a block of the caller's;
// - a shortcut that the kernel cannot add;
// - a rotation with another type of output, a residual, an activation, labels, another block, or angles of another
//   form;
// - 2^31 - 128 or more output rows, 2^15 or more offsets or input channels, an input pitch of 2 GiB or more, weights of
//   32 GiB or more.
cudaError_t ImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
