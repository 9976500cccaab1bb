#include <memory>

#include "engine/base/status_macros.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

const kernels::MatmulGrouping& SparseConvStep::Grouping(const StepContext& context) const {
  const kernels::GroupingOptions& options = PlanIn(context).grouping;
  for (const RulebookGrouping& made : context.groupings) {
    if (made.rulebook == options_.rulebook && made.options == options) return *made.grouping;
  }
  const kernels::PairTablesView tables = context.device_geometry->rulebook(options_.rulebook);
  context.groupings.push_back({.rulebook = options_.rulebook,
                               .options = options,
                               .grouping = std::make_unique<const kernels::MatmulGrouping>(
                                   kernels::GroupMatmuls({.num_offsets = tables.num_offsets,
                                                          .offset_begin = tables.offset_begin,
                                                          .is_symmetric = options_.is_symmetric,
                                                          .identity_offset = tables.identity_offset},
                                                         options))});
  return *context.groupings.back().grouping;
}

kernels::ConvOperands SparseConvStep::Operands(const StepContext& context) const {
  return {.in = context.At(options_.in),
          .out = context.At(options_.out),
          .weights = weights_.data(),
          .epilogue = options_.epilogue.In(context)};
}

kernels::cuda::GatherGemmScatterParams SparseConvStep::GatherGemmScatterParams(const StepContext& context) const {
  return {.tables = context.device_geometry->rulebook(options_.rulebook),
          .is_symmetric = options_.is_symmetric,
          .grouping = &Grouping(context),
          .operands = Operands(context),
          .workspace = context.scratch};
}

kernels::cuda::FetchOnDemandParams SparseConvStep::FetchOnDemandParams(const StepContext& context) const {
  return {.neighbours = context.device_geometry->neighbours(options_.rulebook),
          .is_symmetric = options_.is_symmetric,
          .operands = Operands(context),
          .tile_rows = PlanIn(context).block_rows};
}

size_t SparseConvStep::ScratchBytesOnCuda(const StepContext& context) const {
  if (PlanIn(context).dataflow == Dataflow::kFetchOnDemand) return 0;
  return kernels::cuda::GatherGemmScatterWorkspaceBytes(GatherGemmScatterParams(context));
}

absl::Status SparseConvStep::RunOnCuda(const StepContext& context) const {
  if (PlanIn(context).dataflow == Dataflow::kFetchOnDemand) {
    const kernels::cuda::FetchOnDemandParams params = FetchOnDemandParams(context);
    RETURN_IF_ERROR(CheckRows(context, params.neighbours.num_in_rows, params.neighbours.num_out_rows));
    RETURN_IF_CUDA_ERROR(kernels::cuda::FetchOnDemand(params, context.stream()));
    return absl::OkStatus();
  }
  const kernels::cuda::GatherGemmScatterParams params = GatherGemmScatterParams(context);
  RETURN_IF_ERROR(CheckRows(context, params.tables.num_in_rows, params.tables.num_out_rows));
  RETURN_IF_CUDA_ERROR(kernels::cuda::GatherGemmScatter(params, *context.cuda()->gemm, context.stream()));
  return absl::OkStatus();
}

}  // namespace voxserve
