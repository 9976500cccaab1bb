#pragma once

// The dataflow fetch-on-demand (kernels/conv/fetch_on_demand.h) reads input rows in place. The CPU runs every
// convolution with it; GPUs do not use it.

#include "engine/ops/conv/dataflow.h"

namespace voxserve {

class FetchOnDemandDataflow : public ConvDataflow {
 public:
  Dataflow id() const override { return Dataflow::kFetchOnDemand; }
  absl::string_view name() const override { return "FETCH_ON_DEMAND"; }
  bool is_capturable() const override { return false; }
  std::optional<ServedDataflow> Serves(const ProgramConv& conv) const override;
  RulebookForms Forms(bool is_swapped) const override;
  // The candidates differ in the number of rows per block.
  std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                   const kernels::MatmulGroupingParams& maps) const override;
  std::vector<float> PackWeights(const ProgramConv& conv, const std::vector<float>& weights) const override;
  absl::Status Launch(const ConvRun& run) const override;
};

}  // namespace voxserve
