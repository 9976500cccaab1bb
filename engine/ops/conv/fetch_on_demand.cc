#include "engine/ops/conv/fetch_on_demand.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/fetch_on_demand.h"

namespace voxserve {
namespace {

// What the tuner tries on a CPU.
const std::vector<kernels::ConvBlock>& CpuBlocks() {
  static const std::vector<kernels::ConvBlock> blocks = {{.rows = 0},   {.rows = 64},   {.rows = 128}, {.rows = 256},
                                                         {.rows = 512}, {.rows = 1024}, {.rows = 2048}};
  return blocks;
}

}  // namespace

std::optional<ServedDataflow> FetchOnDemandDataflow::Serves(const ConvShape& shape, bool on_cuda) const {
  if (!on_cuda) return ServedDataflow{.dataflow = id()};
  if constexpr (kernels::kHasCuda) {
    std::vector<kernels::ConvBlock> blocks;
    for (const int32_t rows :
         kernels::cuda::FetchOnDemandTileRows(shape.dtype, shape.in_channels, shape.out_channels)) {
      blocks.push_back({.rows = rows});
    }
    if (!blocks.empty()) return ServedDataflow{.dataflow = id(), .blocks = std::move(blocks)};
  }
  return std::nullopt;
}

RulebookForms FetchOnDemandDataflow::Forms(bool is_swapped) const {
  return {.neighbours = !is_swapped, .swapped_neighbours = is_swapped};
}

std::vector<ConvPlan> FetchOnDemandDataflow::Candidates(const ServedDataflow& served, const ConvPlan& base,
                                                        const kernels::MatmulGroupingParams&) const {
  std::vector<ConvPlan> candidates;
  for (const kernels::ConvBlock& block : served.blocks ? *served.blocks : CpuBlocks()) {
    candidates.push_back(base);
    candidates.back().block = block;
  }
  return candidates;
}

std::vector<float> FetchOnDemandDataflow::PackWeights(const ConvShape& shape, const std::vector<float>& weights,
                                                      bool on_cuda) const {
  if (on_cuda) return DataflowOf(Dataflow::kGatherGemmScatter).PackWeights(shape, weights, on_cuda);
  return kernels::cpu::PackWeights(weights.data(), shape.num_offsets, shape.in_channels, shape.out_channels);
}

absl::Status FetchOnDemandDataflow::Launch(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) {
    if (run.context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(
          kernels::cuda::FetchOnDemand({.neighbours = run.context.device_geometry->neighbours(run.rulebook),
                                        .is_symmetric = run.shape.is_symmetric,
                                        .operands = run.operands,
                                        .tile_rows = run.plan.block.rows},
                                       run.context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::FetchOnDemand({.rulebook = run.context.geometry->rulebook(run.rulebook),
                               .operands = run.operands,
                               .block_rows = run.plan.block.rows},
                              *run.context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
