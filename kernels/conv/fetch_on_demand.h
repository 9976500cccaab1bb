#pragma once

// Sparse convolution by fetch-on-demand: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k), where each input row
// is read in place by the matrix product, without a gather buffer (TorchSparse++'s name for the dataflow, Tang et al.,
// MICRO 2023, section 3.1; here output-stationary, so it is deterministic and needs no atomics).
//
// On the CPU a thread owns a block of output rows that stays in its cache: it starts from bias and residual, adds
// offset after offset by register tiles of several pairs times two vectors of channels, and applies the activation.
// Features move from memory once per offset that needs them; nothing else does.
//
// On a GPU a thread block owns a tile of output rows, whose sums stay in its shared memory: for each offset it takes
// the rows that have a pair, gathers their inputs to shared memory and multiplies them there on the tensor cores.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_operands.h"
#include "kernels/conv/neighbours.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct FetchOnDemandParams {
  RulebookView rulebook;
  ConvOperands operands;   // float32; weights packed by PackWeights for this machine
  int32_t block_rows = 0;  // output rows that a thread keeps in cache; 0: DefaultBlockRows
};
static_assert(std::is_trivially_copyable_v<FetchOnDemandParams>);

namespace cpu {

// Weights [K, in_channels, out_channels] in the order in which FetchOnDemand reads them on this machine: per offset
// panels of two vectors of output channels, [in_channels][panel width], the last padded with 0 to a whole vector.
std::vector<float> PackWeights(const float* weights, int32_t num_offsets, int32_t in_channels, int32_t out_channels);

void FetchOnDemand(const FetchOnDemandParams& params, ThreadPool& pool);

// Rows for which outputs and the weights of an offset fit a core's L2 cache together; a multiple of
// kRulebookTileRows.
int32_t DefaultBlockRows(int32_t in_channels, int32_t out_channels);

// The widest vector instruction set that this machine and this build share: "avx512", "avx2", "baseline".
const char* VectorInstructionSet();

}  // namespace cpu

namespace cuda {

struct FetchOnDemandParams {
  NeighboursView neighbours;
  bool is_symmetric = false;  // a submanifold convolution whose offset K - 1 - k mirrors k
  ConvOperands operands;      // out in in.dtype or float32; weights in the order of WalkOrder(K, is_symmetric)
  int32_t tile_rows = 0;      // output rows of a block, one of FetchOnDemandTileRows; 0: chosen from the shape
};
static_assert(std::is_trivially_copyable_v<FetchOnDemandParams>);

// What tile_rows may be on the current device, ascending; empty where it does not serve such a convolution.
std::vector<int32_t> FetchOnDemandTileRows(DType dtype, int32_t in_channels, int32_t out_channels);

// cudaErrorInvalidValue for other tile_rows, other dtypes than float16 and bfloat16, and more than kMaxKernelVolume
// offsets; cudaErrorNotSupported on GPUs before compute capability 8.0.
cudaError_t FetchOnDemand(const FetchOnDemandParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
