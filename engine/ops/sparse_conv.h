#pragma once

// Sparse convolution: out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). Submanifold, strided and
// inverse ones differ in their rulebook alone.
//
// Sources of the coordinate rules: MinkowskiEngine 0.5.4 (FLOOR), spconv 2.3.8 (PADDED) and TorchSparse 1.4 (EXPAND;
// Tang et al., MLSys 2022, Algorithm 3); kernels/output_coordinates.h states them.

#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/gather_gemm_scatter.h"
#include "kernels/matmul_grouping.h"

namespace voxserve {

// How the products are made. kFetchOnDemand reads input rows in place (kernels/fetch_on_demand.h; CPU alone so far),
// kGatherGemmScatter copies them into a buffer and calls the library's GEMM (kernels/gather_gemm_scatter.h).
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter };

class SparseConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // do not overlap
    int rulebook = 0;     // of the batch's geometry
    int32_t num_offsets = 0;
    bool is_symmetric = false;  // kernels::ConvGeometry::IsSymmetric
    Dataflow dataflow = Dataflow::kFetchOnDemand;
    int32_t block_rows = 0;             // CPU: output rows that a thread keeps in cache; 0: the dataflow's default
    kernels::GroupingOptions grouping;  // CUDA, kGatherGemmScatter
    FusedEpilogue epilogue;
    DType dtype = DType::kFloat32;  // of in, weights and residual
  };

  // weights: [num_offsets, in channels, out channels].
  SparseConvStep(Options options, std::vector<float> weights);

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  absl::Status CheckRows(const StepContext& context, int64_t num_in_rows, int64_t num_out_rows) const;
  absl::Status RunOnCuda(const StepContext& context) const;
  size_t ScratchBytesOnCuda(const StepContext& context) const;
  const kernels::MatmulGrouping& Grouping(const StepContext& context) const;
  kernels::cuda::GatherGemmScatterParams CudaParams(const StepContext& context) const;

  Options options_;
  Weights weights_;  // in the dataflow's order
};

}  // namespace voxserve
