#pragma once

// Sparse convolution: out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). Submanifold, strided,
// inverse, transposed and generative ones, and those onto given sites, differ in their rulebook alone; kernels that are
// no box in its offsets, and groups in zeros of the weights.
//
// Sources of the coordinate rules: MinkowskiEngine 0.5.4 (FLOOR, GENERATIVE), spconv 2.3.8 (PADDED, TRANSPOSED) and
// TorchSparse 1.4 (EXPAND; Tang et al., MLSys 2022, Algorithm 3); kernels/coordinates/output_coordinates.h states them.

#include <cstdint>

#include "engine/ops/conv_plan.h"
#include "engine/ops/step.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

class SparseConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // do not overlap
    int conv = 0;         // its index among the program's convolutions: its plan is StepContext::plans[conv]
    int rulebook = 0;     // of the batch's geometry
    int32_t num_offsets = 0;
    bool is_symmetric = false;  // kernels::ConvGeometry::IsSymmetric
    FusedEpilogue epilogue;
    DType dtype = DType::kFloat32;  // of in, weights and residual
    bool on_cuda = false;           // where it will run
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
  const ConvPlan& PlanIn(const StepContext& context) const;
  const kernels::MatmulGrouping& Grouping(const StepContext& context) const;
  kernels::ConvOperands Operands(const StepContext& context) const;
  kernels::cuda::GatherGemmScatterParams GatherGemmScatterParams(const StepContext& context) const;
  kernels::cuda::FetchOnDemandParams FetchOnDemandParams(const StepContext& context) const;

  Options options_;
  Weights weights_;  // on a CPU in the dataflow's order, on a GPU in WalkOrder
};

}  // namespace voxserve
