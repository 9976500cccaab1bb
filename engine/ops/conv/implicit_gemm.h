#pragma once

// The table's entry of the implicit GEMM (kernels/conv/implicit_gemm/implicit_gemm.h), which keeps an output tile's
// sums on the chip. A GPU of compute capability 8.0 or newer runs convolutions of float16 and bfloat16 by it, and can
// run those of float32 that may be rounded to TensorFloat-32.

#include "engine/ops/conv/dataflow.h"

namespace voxserve {

class ImplicitGemmDataflow : public ConvDataflow {
 public:
  Dataflow id() const override { return Dataflow::kImplicitGemm; }
  absl::string_view name() const override { return "IMPLICIT_GEMM"; }
  // Numbers of rows stay on the device.
  bool is_capturable() const override { return true; }
  std::optional<ServedDataflow> Serves(const ConvShape& shape, bool on_cuda) const override;
  RulebookForms Forms(bool is_swapped) const override;
  // Every block that is served.
  std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                   const kernels::MatmulGroupingParams& maps) const override;
  std::vector<float> PackWeights(const ConvShape& shape, const std::vector<float>& weights) const override;
  size_t WorkspaceBytes(const ConvRun& run) const override;
  absl::Status Launch(const ConvRun& run) const override;
};

}  // namespace voxserve
