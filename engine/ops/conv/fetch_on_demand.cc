#include "engine/ops/conv/fetch_on_demand.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/fetch_on_demand.h"

namespace voxserve {
namespace {

// What the tuner tries on a CPU.
const std::vector<int32_t>& CpuBlockRows() {
  static const std::vector<int32_t> rows = {0, 64, 128, 256, 512, 1024, 2048};
  return rows;
}

}  // namespace

std::optional<ServedDataflow> FetchOnDemandDataflow::Serves(const ConvShape& shape, bool on_cuda) const {
  if (!on_cuda) return ServedDataflow{.dataflow = id()};
  if constexpr (kernels::kHasCuda) {
    std::vector<int32_t> rows =
        kernels::cuda::FetchOnDemandTileRows(shape.dtype, shape.in_channels, shape.out_channels);
    if (!rows.empty()) return ServedDataflow{.dataflow = id(), .block_rows = std::move(rows)};
  }
  return std::nullopt;
}

RulebookForms FetchOnDemandDataflow::Forms(bool is_swapped) const {
  return {.neighbours = !is_swapped, .swapped_neighbours = is_swapped};
}

std::vector<ConvPlan> FetchOnDemandDataflow::Candidates(const ServedDataflow& served, const ConvPlan& base,
                                                        const kernels::MatmulGroupingParams&) const {
  std::vector<ConvPlan> candidates;
  for (const int32_t rows : served.block_rows ? *served.block_rows : CpuBlockRows()) {
    candidates.push_back(base);
    candidates.back().block_rows = rows;
  }
  return candidates;
}

absl::Status FetchOnDemandDataflow::Launch(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) {
    if (run.context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(
          kernels::cuda::FetchOnDemand({.neighbours = run.context.device_geometry->neighbours(run.rulebook),
                                        .is_symmetric = run.shape.is_symmetric,
                                        .operands = run.operands,
                                        .tile_rows = run.plan.block_rows},
                                       run.context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::FetchOnDemand({.rulebook = run.context.geometry->rulebook(run.rulebook),
                               .operands = run.operands,
                               .block_rows = run.plan.block_rows},
                              *run.context.execution->pool);
  return absl::OkStatus();
}

}  // namespace voxserve
