#include "engine/ops/conv/gather_gemm_scatter.h"

#include "engine/ops/conv/distinct_groupings.h"

namespace voxserve {

std::optional<ServedDataflow> GatherGemmScatterDataflow::Serves(const ProgramConv& conv) const {
  if (!conv.is_on_cuda || conv.dtype == DType::kInt8) return std::nullopt;
  return ServedDataflow{.dataflow = id()};
}

RulebookForms GatherGemmScatterDataflow::Forms(bool /*is_swapped*/) const { return {.pairs = true}; }

std::vector<ConvPlan> GatherGemmScatterDataflow::Candidates(const ServedDataflow&, const ConvPlan& base,
                                                            const kernels::MatmulGroupingParams& maps) const {
  std::vector<ConvPlan> candidates;
  if (maps.num_offsets == 0) return candidates;
  for (const kernels::GroupingOptions& grouping : DistinctGroupings(maps, base.grouping)) {
    candidates.push_back(base);
    candidates.back().grouping = grouping;
  }
  return candidates;
}

size_t GatherGemmScatterDataflow::WorkspaceBytes(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) {
    return WorkspaceBytesOnCuda(run);
  }
  return 0;
}

// Orders the weights so that those of a group of offsets are contiguous (kernels/conv/matmul_grouping.h).
std::vector<float> GatherGemmScatterDataflow::PackWeights(const ProgramConv& conv,
                                                          const std::vector<float>& weights) const {
  const int64_t matrix = int64_t{conv.in_channels} * conv.out_channels;
  std::vector<float> ordered;
  ordered.reserve(weights.size());
  for (const int32_t k : kernels::WalkOrder(conv.num_offsets, conv.is_symmetric)) {
    ordered.insert(ordered.end(), weights.begin() + k * matrix, weights.begin() + (k + 1) * matrix);
  }
  return ordered;
}

absl::Status GatherGemmScatterDataflow::Launch(const ConvRun& run) const {
  if constexpr (kernels::kHasCuda) {
    return LaunchOnCuda(run);
  }
  return absl::InternalError("gather-GEMM-scatter runs on a GPU alone");
}

}  // namespace voxserve
