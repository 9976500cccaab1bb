#pragma once

// The table's entry of fetch-on-demand (kernels/conv/fetch_on_demand.h), which reads input rows in place. The CPU runs
// every convolution by it, a GPU of compute capability 8.0 or newer those of float16 and bfloat16.

#include "engine/ops/conv/dataflow.h"

namespace voxserve {

class FetchOnDemandDataflow : public ConvDataflow {
 public:
  Dataflow id() const override { return Dataflow::kFetchOnDemand; }
  absl::string_view name() const override { return "FETCH_ON_DEMAND"; }
  // The host chooses tiles by the number of output rows.
  bool is_capturable() const override { return false; }
  // On a GPU block.rows are a tile's.
  std::optional<ServedDataflow> Serves(const ConvShape& shape, bool on_cuda) const override;
  RulebookForms Forms(bool is_swapped) const override;
  // A block of each size.
  std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                   const kernels::MatmulGroupingParams& maps) const override;
  std::vector<float> PackWeights(const ConvShape& shape, const std::vector<float>& weights,
                                 bool on_cuda) const override;
  absl::Status Launch(const ConvRun& run) const override;
};

}  // namespace voxserve
