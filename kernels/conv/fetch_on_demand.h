#pragma once

// Sparse convolution by fetch-on-demand, on a CPU: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k), where each
// input row is read in place by the matrix product, without a gather buffer (TorchSparse++'s name for the dataflow,
// Tang et al., MICRO 2023, section 3.1; here output-stationary, so it is deterministic and needs no atomics).
//
// A thread owns a block of output rows that stays in its cache: it starts from bias and residual, adds offset after
// offset by register tiles of several pairs times two vectors of channels, and applies the activation. Features move
// from memory once per offset that needs them; nothing else does.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_operands.h"
#include "kernels/conv/rulebook.h"
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

}  // namespace voxserve::kernels
