#pragma once

// Sparse convolution by fetch-on-demand, on a CPU, in float32: out[o] = epilogue(sum over pairs (k, i, o) of in[i]
// W_k). The engine's dataflow of the same name calls it.
//
// The matrix product reads each input row in place, without a gather buffer. The name is TorchSparse++'s (Tang et al.,
// MICRO 2023, section 3.1). This version is output-stationary: one thread computes an output row from beginning to end.
// So the result is deterministic and needs no atomics.
//
// A thread takes a block of output rows, which stays in its cache. It initialises the rows with bias and residual. It
// adds the products of one offset after the other, in register tiles of several pairs times up to three vectors of
// channels. At last it applies the activation. So memory traffic is mainly one read of an input row for every pair.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/conv_operands.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct FetchOnDemandParams {
  RulebookView rulebook;
  ConvOperands operands;  // float32; weights packed by PackWeights in this process
  // Rows per block, rounded down to whole rulebook tiles. 0: as many as let the outputs of the block and the weights of
  // one offset fit 256 KiB of a core's L2 cache together, but from 128 to 1024 rows.
  int32_t block_rows = 0;
};
static_assert(std::is_trivially_copyable_v<FetchOnDemandParams>);

namespace cpu {

// Packs weights [K, in_channels, out_channels] in the order in which FetchOnDemand reads them on this machine; other
// machines may have other vectors. The output channels of every offset are cut into panels [in_channels][panel width].
// Panels are as wide as the register tiles that read them: two vectors, with AVX2 and AVX-512 also three; one, if no
// more is left. Channels that do not fill a vector are a last panel, padded with 0 to a whole vector.
std::vector<float> PackWeights(const float* weights, int32_t num_offsets, int32_t in_channels, int32_t out_channels);

// Convolves. The caller's thread and the pool's threads take the blocks of output rows.
void FetchOnDemand(const FetchOnDemandParams& params, ThreadPool& pool);

// Returns the widest vector instruction set that both this machine and this build have: "avx512", "avx2" or "baseline"
// on x86-64, "neon" on aarch64.
const char* VectorInstructionSet();

}  // namespace cpu

}  // namespace voxserve::kernels
