#include <memory>

#include "engine/base/status_macros.h"
#include "engine/ops/conv/gather_gemm_scatter.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/gather_gemm_scatter.h"

namespace voxserve {
namespace {

const kernels::MatmulGrouping& GroupingOf(const ConvRun& run) {
  const StepContext& context = run.context;
  const kernels::GroupingOptions& options = run.plan.grouping;
  for (const RulebookGrouping& made : context.groupings) {
    if (made.rulebook == run.rulebook && made.options == options) return *made.grouping;
  }
  const kernels::PairTablesView tables = context.device_geometry->rulebook(run.rulebook);
  context.groupings.push_back({.rulebook = run.rulebook,
                               .options = options,
                               .grouping = std::make_unique<const kernels::MatmulGrouping>(
                                   kernels::GroupMatmuls({.num_offsets = tables.num_offsets,
                                                          .offset_begin = tables.offset_begin,
                                                          .is_symmetric = run.shape.is_symmetric,
                                                          .identity_offset = tables.identity_offset},
                                                         options))});
  return *context.groupings.back().grouping;
}

kernels::cuda::GatherGemmScatterParams ParamsOf(const ConvRun& run) {
  return {.tables = run.context.device_geometry->rulebook(run.rulebook),
          .is_symmetric = run.shape.is_symmetric,
          .grouping = &GroupingOf(run),
          .operands = run.operands,
          .workspace = run.context.scratch};
}

}  // namespace

size_t GatherGemmScatterDataflow::WorkspaceBytesOnCuda(const ConvRun& run) {
  return kernels::cuda::GatherGemmScatterWorkspaceBytes(ParamsOf(run));
}

absl::Status GatherGemmScatterDataflow::LaunchOnCuda(const ConvRun& run) {
  RETURN_IF_CUDA_ERROR(
      kernels::cuda::GatherGemmScatter(ParamsOf(run), *run.context.cuda()->gemm, run.context.stream()));
  return absl::OkStatus();
}

}  // namespace voxserve
