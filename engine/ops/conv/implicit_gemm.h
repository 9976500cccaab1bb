#pragma once

// The dataflow implicit GEMM (kernels/conv/implicit_gemm/implicit_gemm.h) keeps an output tile's sums on the chip. GPUs
// of compute capability 8.0 or newer run convolutions of float16 and bfloat16 with it. They can also run float32
// convolutions with it where factors may be rounded to TensorFloat-32. Convolutions in 8 bits have its plans and read
// its form of a rulebook; Int8ConvStep (engine/ops/int8/int8_conv.h) launches them.

#include "engine/ops/conv/dataflow.h"

namespace voxserve {

class ImplicitGemmDataflow : public ConvDataflow {
 public:
  Dataflow id() const override { return Dataflow::kImplicitGemm; }
  absl::string_view name() const override { return "IMPLICIT_GEMM"; }
  // True, since Launch reads the numbers of rows on the device.
  bool is_capturable() const override { return true; }
  std::optional<ServedDataflow> Serves(const ProgramConv& conv) const override;
  RulebookForms Forms(bool is_swapped) const override;
  // The candidates are the default block and all blocks of `served`.
  std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                   const kernels::MatmulGroupingParams& maps) const override;
  std::vector<float> PackWeights(const ProgramConv& conv, const std::vector<float>& weights) const override;
  size_t WorkspaceBytes(const ConvRun& run) const override;
  bool AddsShortcut(const ConvRun& run) const override;
  bool Norms(const ConvRun& run) const override;
  absl::Status Launch(const ConvRun& run) const override;
};

}  // namespace voxserve
