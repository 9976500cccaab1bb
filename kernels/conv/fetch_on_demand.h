#pragma once

// Sparse convolution by fetch-on-demand, on a CPU: out[o] = epilogue(sum over pairs (k, i, o) of in[i] W_k).
//
// The matrix product reads each input row in place, without a gather buffer. The name is TorchSparse++'s (Tang et al.,
// MICRO 2023, section 3.1). This version is output-stationary, so it is deterministic and needs no atomics.
//
// A thread owns a block of output rows that stays in its cache. It starts the rows from bias and residual, adds one
// offset after the other, in register tiles of several pairs times two vectors of channels, and applies the activation.
// The only memory traffic is one read of an input row for every offset that needs it.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_operands.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct FetchOnDemandParams {
  RulebookView rulebook;
  ConvOperands operands;   // float32; weights packed by PackWeights on this machine
  int32_t block_rows = 0;  // output rows that a thread keeps in cache; 0: DefaultBlockRows
};
static_assert(std::is_trivially_copyable_v<FetchOnDemandParams>);

namespace cpu {

// Packs weights [K, in_channels, out_channels] in the order in which FetchOnDemand reads them on this machine. Every
// offset has panels of two vectors of output channels, [in_channels][panel width]. The last panel is padded with 0 to a
// whole vector.
std::vector<float> PackWeights(const float* weights, int32_t num_offsets, int32_t in_channels, int32_t out_channels);

void FetchOnDemand(const FetchOnDemandParams& params, ThreadPool& pool);

// Returns the largest number of rows whose outputs fit a core's L2 cache together with one offset's weights. It is a
// multiple of kRulebookTileRows.
int32_t DefaultBlockRows(int32_t in_channels, int32_t out_channels);

// Returns the widest vector instruction set that both this machine and this build have: "avx512", "avx2", "baseline".
const char* VectorInstructionSet();

}  // namespace cpu

}  // namespace voxserve::kernels
