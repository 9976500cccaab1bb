#pragma once

// Sparse convolution: out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). Submanifold, strided and
// inverse ones differ in their rulebook alone.
//
// Sources of the coordinate rules: reference implementations of MinkowskiEngine 0.5.4 (FLOOR), spconv 2.3.8 (PADDED)
// and TorchSparse 1.4 (EXPAND; Tang et al., MLSys 2022, Algorithm 3); kernels/output_coordinates.h states them.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/tensor.h"
#include "kernels/epilogue.h"
#include "kernels/rulebook.h"

namespace voxserve {

// How the products are made. kFetchOnDemand reads input rows in place (kernels/fetch_on_demand.h), kGatherGemmScatter
// copies them into a buffer and calls the library's GEMM (kernels/gather_scatter.h).
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter };

struct SparseConvArgs {
  kernels::RulebookView rulebook;
  Tensor in;                       // [num_in_rows, in_channels]
  Tensor out;                      // [num_out_rows, out_channels]; does not overlap `in`
  const float* weights = nullptr;  // by PrepareSparseConvWeights for the same dataflow
  kernels::Epilogue epilogue;
  Dataflow dataflow = Dataflow::kFetchOnDemand;
  int32_t block_rows = 0;  // output rows a thread keeps in cache; 0: the dataflow's default
};

// INTERNAL where the tensors' rows are not the rulebook's.
absl::Status SparseConv(const SparseConvArgs& args, ExecutionContext& context);

// Weights [num_offsets, in_channels, out_channels] in the order that the dataflow reads on this machine.
std::vector<float> PrepareSparseConvWeights(std::vector<float> weights, int32_t num_offsets, int32_t in_channels,
                                            int32_t out_channels, Dataflow dataflow);

}  // namespace voxserve
