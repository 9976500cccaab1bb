#include "engine/base/status_macros.h"
#include "engine/ops/conv/sparse_conv.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

const kernels::MatmulGrouping& SparseConvStep::Grouping(const StepContext& context) const {
  const kernels::PairTablesView tables = context.device_geometry->rulebook(options_.rulebook);
  return context.groupings->Find(options_.rulebook,
                                 {.num_offsets = tables.num_offsets,
                                  .offset_begin = tables.offset_begin,
                                  .is_symmetric = options_.is_symmetric,
                                  .identity_offset = tables.identity_offset},
                                 PlanIn(context).grouping);
}

kernels::cuda::GatherGemmScatterParams SparseConvStep::GatherGemmScatterParams(const StepContext& context) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  return {.tables = context.device_geometry->rulebook(options_.rulebook),
          .is_symmetric = options_.is_symmetric,
          .grouping = &Grouping(context),
          .dtype = in.dtype,
          .out_dtype = out.dtype,
          .in = in.data,
          .in_pitch = in.pitch,
          .in_channels = in.channels,
          .weights = weights_.data(),
          .out = out.data,
          .out_pitch = out.pitch,
          .out_channels = out.channels,
          .epilogue = options_.epilogue.In(context),
          .workspace = context.scratch};
}

kernels::cuda::FetchOnDemandParams SparseConvStep::FetchOnDemandParams(const StepContext& context) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows out = context.At(options_.out);
  const NeighboursView neighbours = context.device_geometry->neighbours(options_.rulebook);
  return {.num_offsets = neighbours.num_offsets,
          .neighbours = neighbours.rows,
          .neighbours_pitch = neighbours.pitch,
          .num_in_rows = neighbours.num_in_rows,
          .num_out_rows = neighbours.num_out_rows,
          .is_symmetric = options_.is_symmetric,
          .identity_offset = neighbours.identity_offset,
          .dtype = in.dtype,
          .out_dtype = out.dtype,
          .in = in.data,
          .in_pitch = in.pitch,
          .in_channels = in.channels,
          .weights = weights_.data(),
          .out = out.data,
          .out_pitch = out.pitch,
          .out_channels = out.channels,
          .epilogue = options_.epilogue.In(context),
          .tile_rows = PlanIn(context).block_rows};
}

size_t SparseConvStep::ScratchBytesOnCuda(const StepContext& context) const {
  if (PlanIn(context).dataflow == Dataflow::kFetchOnDemand) return 0;
  return kernels::cuda::GatherGemmScatterWorkspaceBytes(GatherGemmScatterParams(context));
}

absl::Status SparseConvStep::RunOnCuda(const StepContext& context) const {
  if (PlanIn(context).dataflow == Dataflow::kFetchOnDemand) {
    const kernels::cuda::FetchOnDemandParams params = FetchOnDemandParams(context);
    RETURN_IF_ERROR(CheckRows(context, params.num_in_rows, params.num_out_rows));
    RETURN_IF_CUDA_ERROR(kernels::cuda::FetchOnDemand(params, context.stream()));
    return absl::OkStatus();
  }
  const kernels::cuda::GatherGemmScatterParams params = GatherGemmScatterParams(context);
  RETURN_IF_ERROR(CheckRows(context, params.tables.num_in_rows, params.tables.num_out_rows));
  RETURN_IF_CUDA_ERROR(kernels::cuda::GatherGemmScatter(params, *context.cuda()->gemm, context.stream()));
  return absl::OkStatus();
}

}  // namespace voxserve
