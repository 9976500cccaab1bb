#include "engine/ops/conv/fetch_on_demand.h"

#include "kernels/conv/fetch_on_demand.h"

namespace voxserve {

std::optional<ServedDataflow> FetchOnDemandDataflow::Serves(const ProgramConv& conv) const {
  if (conv.is_on_cuda) return std::nullopt;
  return ServedDataflow{.dataflow = id()};
}

RulebookForms FetchOnDemandDataflow::Forms(bool /*is_swapped*/) const { return {}; }

std::vector<ConvPlan> FetchOnDemandDataflow::Candidates(const ServedDataflow&, const ConvPlan& base,
                                                        const kernels::MatmulGroupingParams&) const {
  std::vector<ConvPlan> candidates;
  for (const int32_t rows : {0, 64, 128, 256, 512, 1024, 2048}) {
    candidates.push_back(base);
    candidates.back().block = {.rows = rows};
  }
  return candidates;
}

std::vector<float> FetchOnDemandDataflow::PackWeights(const ProgramConv& conv,
                                                      const std::vector<float>& weights) const {
  return kernels::cpu::PackWeights(weights.data(), conv.num_offsets, conv.in_channels, conv.out_channels);
}

absl::Status FetchOnDemandDataflow::Launch(const ConvRun& run) const {
  kernels::cpu::FetchOnDemand({.rulebook = run.context.geometry->rulebook(run.conv.rulebook),
                               .operands = run.operands,
                               .block_rows = run.plan.block.rows},
                              *run.context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
