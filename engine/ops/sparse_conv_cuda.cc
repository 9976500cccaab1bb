#include <memory>

#include "engine/base/status_macros.h"
#include "engine/ops/sparse_conv.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/gather_gemm_scatter.h"

namespace voxserve {

const kernels::MatmulGrouping& SparseConvStep::Grouping(const StepContext& context) const {
  for (const RulebookGrouping& made : context.groupings) {
    if (made.rulebook == options_.rulebook && made.options == options_.grouping) return *made.grouping;
  }
  const kernels::PairTablesView tables = context.device_geometry->rulebook(options_.rulebook);
  context.groupings.push_back({.rulebook = options_.rulebook,
                               .options = options_.grouping,
                               .grouping = std::make_unique<const kernels::MatmulGrouping>(
                                   kernels::GroupMatmuls({.num_offsets = tables.num_offsets,
                                                          .offset_begin = tables.offset_begin,
                                                          .is_symmetric = options_.is_symmetric,
                                                          .identity_offset = tables.identity_offset},
                                                         options_.grouping))});
  return *context.groupings.back().grouping;
}

kernels::cuda::GatherGemmScatterParams SparseConvStep::CudaParams(const StepContext& context) const {
  const Tensor in = context.At(options_.in);
  const Tensor out = context.At(options_.out);
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

size_t SparseConvStep::ScratchBytesOnCuda(const StepContext& context) const {
  return kernels::cuda::GatherGemmScatterWorkspaceBytes(CudaParams(context));
}

absl::Status SparseConvStep::RunOnCuda(const StepContext& context) const {
  const kernels::cuda::GatherGemmScatterParams params = CudaParams(context);
  RETURN_IF_ERROR(CheckRows(context, params.tables.num_in_rows, params.tables.num_out_rows));
  RETURN_IF_CUDA_ERROR(kernels::cuda::GatherGemmScatter(params, *context.cuda()->gemm, context.stream()));
  return absl::OkStatus();
}

}  // namespace voxserve
