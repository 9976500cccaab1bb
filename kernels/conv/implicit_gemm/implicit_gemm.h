#pragma once

// Sparse convolution by implicit GEMM on a GPU, in one kernel: out[o] = epilogue(sum over pairs (k, i, o) of in[i]
// W_k).
//
// A thread block owns a tile of output rows and columns and keeps its sums in registers. It visits the offsets that its
// rows have (tiles.h), gathers their input rows to shared memory ahead of time, and multiplies them there. Only the
// input, the weights and the output move through memory, and the host reads no size.
//
// The summed axis is cut into slices of 64 bytes of a row: 32 channels of 16 bits, or 16 channels of 32 bits. A slice
// holds some of one offset's channels or, if a row is shorter, the channels of several offsets. A sum's products are
// added slice by slice in ascending order. So a row's bytes depend neither on its tile nor on the run. Split K changes
// the order: it adds two partial sums.
//
// On Hopper, in a build with code for sm_90a, 16-bit products are computed by warp groups (wgmma); separate warps only
// copy. Other GPUs from sm_80 on, and TensorFloat-32 everywhere, use products of single warps (mma.sync).
//
// Sources: spconv 2 (mask implicit GEMM); Tang et al., TorchSparse++ (MICRO 2023), section 3; CUTLASS's example 52 (a
// gather by cp.async that feeds warp groups).

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_block.h"
#include "kernels/conv/conv_operands.h"
#include "kernels/conv/tiles.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct ImplicitGemmParams {
  TilesView tiles;            // K = 1 without masks: output row o reads input row o
  ConvOperands operands;      // out in in.dtype or float32; weights by PackImplicitGemmWeights, 128-byte aligned
  ConvBlock block;            // one of ImplicitGemmBlocks; with 0 rows: the default
  void* workspace = nullptr;  // ImplicitGemmWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<ImplicitGemmParams>);

// Packs weights [num_offsets, in_channels, out_channels] in the order in which ImplicitGemm reads them when they are
// stored as `dtype`. The caller converts the values to `dtype`.
std::vector<float> PackImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                           const float* weights);

namespace cuda {

// Returns the blocks that the current GPU supports for these factors; none if it does not support them at all. float32
// factors are rounded to TensorFloat-32.
std::vector<ConvBlock> ImplicitGemmBlocks(DType dtype, int32_t out_channels);

// Depends only on the block, the capacity and the output's channels.
size_t ImplicitGemmWorkspaceBytes(const ImplicitGemmParams& params);

// Convolves. On Hopper the kernel starts before its predecessor on the stream has ended. The predecessor may write
// features, residuals, outputs and the tiles form's counters, but not the form's other members nor the weights.
// MakeTiles takes care of that.
//
// cudaErrorInvalidValue for
// - a block that the GPU does not support, or a GPU without any;
// - types that do not belong together;
// - 2^31 - 128 or more output rows, 2^15 or more offsets or input channels, a pitch of 2 GiB or more, weights of 32 GiB
//   or more.
cudaError_t ImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
