#include "engine/base/status_macros.h"
#include "engine/ops/conv/gather_gemm_scatter.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/gather_gemm_scatter.h"

namespace voxserve {
namespace {

kernels::cuda::GatherGemmScatterParams GroupedParamsOf(const ConvRun& run) {
  const kernels::PairTablesView tables = run.context.device_geometry->rulebook(run.conv.rulebook);
  const kernels::MatmulGrouping& grouping = run.context.groupings->Find(run.conv.rulebook,
                                                                        {.num_offsets = tables.num_offsets,
                                                                         .offset_begin = tables.offset_begin,
                                                                         .is_symmetric = run.conv.is_symmetric,
                                                                         .identity_offset = tables.identity_offset},
                                                                        run.plan.grouping);
  return {.tables = tables,
          .is_symmetric = run.conv.is_symmetric,
          .grouping = &grouping,
          .operands = run.operands,
          .workspace = run.context.scratch};
}

}  // namespace

size_t GatherGemmScatterDataflow::WorkspaceBytesOnCuda(const ConvRun& run) {
  return kernels::cuda::GatherGemmScatterWorkspaceBytes(GroupedParamsOf(run));
}

absl::Status GatherGemmScatterDataflow::LaunchOnCuda(const ConvRun& run) {
  ASSIGN_OR_RETURN(kernels::cuda::Gemm* const gemm, run.context.cuda()->ReadyGemm());
  RETURN_IF_CUDA_ERROR(kernels::cuda::GatherGemmScatter(GroupedParamsOf(run), *gemm, run.context.stream()));
  return absl::OkStatus();
}

}  // namespace voxserve
