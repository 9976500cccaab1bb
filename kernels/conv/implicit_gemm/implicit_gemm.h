#pragma once

// Sparse convolution by implicit GEMM: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k), in one kernel, on a
// GPU. A thread block owns a tile of output rows and columns and keeps its sums in registers; it walks the offsets that
// its rows have (tiles.h), gathers their input rows to shared memory ahead of time, and multiplies them there.
// Nothing but the input, the weights and the output is moved, and no size is read on the host.
//
// The axis that is summed over is cut into slices of 64 bytes of a row, 32 channels of 16 bits or 16 of 32: some of an
// offset's channels or, where a row is shorter, some offsets' channels. A sum's products are added slice by slice in
// ascending order, so a row's bytes depend neither on its tile nor on the run; split K groups them otherwise.
//
// On Hopper, in a build that has code for sm_90a, 16-bit products are those of warp groups (wgmma), fed by warps that
// only copy; elsewhere from sm_80 on, and for TensorFloat-32, those of warps (mma.sync).
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
  TilesView tiles;            // K = 1 without masks: every row reads the input row of its own number
  ConvOperands operands;      // out in in.dtype or float32; weights by PackImplicitGemmWeights, 128-byte aligned
  ConvBlock block;            // one of ImplicitGemmBlocks; of 0 rows: the default
  void* workspace = nullptr;  // ImplicitGemmWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<ImplicitGemmParams>);

// weights: [num_offsets, in_channels, out_channels]. In the order in which ImplicitGemm reads them where they are
// stored as `dtype`: the caller converts the values.
std::vector<float> PackImplicitGemmWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels, DType dtype,
                                           const float* weights);

namespace cuda {

// The blocks that the current GPU has for these factors; none: it does not serve them. float32 factors are rounded to
// TensorFloat-32.
std::vector<ConvBlock> ImplicitGemmBlocks(DType dtype, int32_t out_channels);

// Follows from the block, the capacity and the output's channels alone.
size_t ImplicitGemmWorkspaceBytes(const ImplicitGemmParams& params);

// On Hopper it begins before the kernel in front of it on the stream has ended. That kernel may write features,
// residuals, outputs and the tiles form's counters, but neither the form's other members nor the weights; MakeTiles
// sees to that. cudaErrorInvalidValue for a block that the GPU has not, or where it has none; for types that do not
// belong together; and from 2^31 - 128 output rows, 2^15 offsets or input channels, a pitch of 2 GiB or weights of
// 32 GiB on.
cudaError_t ImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
