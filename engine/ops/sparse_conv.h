#pragma once

// Sparse convolution: out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). Submanifold, strided and
// inverse ones differ in their rulebook alone.
//
// Sources of the coordinate rules: MinkowskiEngine 0.5.4 (FLOOR), spconv 2.3.8 (PADDED) and TorchSparse 1.4 (EXPAND;
// Tang et al., MLSys 2022, Algorithm 3); kernels/output_coordinates.h states them.

#include <cstdint>

#include "engine/ops/step.h"

namespace voxserve {

// How the products are made. kFetchOnDemand reads input rows in place (kernels/fetch_on_demand.h), kGatherGemmScatter
// copies them into a buffer and calls the library's GEMM (kernels/gather_scatter.h).
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter };

class SparseConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // do not overlap
    int rulebook = 0;     // of the batch's geometry
    Dataflow dataflow = Dataflow::kFetchOnDemand;
    int32_t block_rows = 0;  // output rows that a thread keeps in cache; 0: the dataflow's default
    FusedEpilogue epilogue;
  };

  // weights: [num_offsets, in channels, out channels].
  SparseConvStep(Options options, StepValues weights, int32_t num_offsets);

  absl::Status Run(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  const Options options_;
  StepValues weights_;  // in the dataflow's order
};

}  // namespace voxserve
