#pragma once

// The dataflow gather-GEMM-scatter (kernels/conv/gather_gemm_scatter.h) copies input rows into a buffer and multiplies
// them with cuBLASLt's GEMM. A GPU can run every convolution with it.

#include "engine/ops/conv/dataflow.h"

namespace voxserve {

class GatherGemmScatterDataflow : public ConvDataflow {
 public:
  Dataflow id() const override { return Dataflow::kGatherGemmScatter; }
  absl::string_view name() const override { return "GATHER_GEMM_SCATTER"; }
  bool has_grouping() const override { return true; }
  // False, since the host reads the sizes of the kernel maps to group the matrix products.
  bool is_capturable() const override { return false; }
  // It ignores ConvPlan::block.
  std::optional<ServedDataflow> Serves(const ProgramConv& conv) const override;
  RulebookForms Forms(bool is_swapped) const override;
  // The candidates are the DistinctGroupings of the maps; none if the sizes of the maps are not known.
  std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                   const kernels::MatmulGroupingParams& maps) const override;
  size_t WorkspaceBytes(const ConvRun& run) const override;
  std::vector<float> PackWeights(const ProgramConv& conv, const std::vector<float>& weights) const override;
  absl::Status Launch(const ConvRun& run) const override;

 private:
  static size_t WorkspaceBytesOnCuda(const ConvRun& run);
  static absl::Status LaunchOnCuda(const ConvRun& run);
};

}  // namespace voxserve
