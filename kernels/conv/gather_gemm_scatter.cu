#include <limits>

#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The buffers between gather, products and scatter.
struct Workspace {
  char* gathered;  // [num_gathered_rows, in_channels]
  char* products;  // [num_product_rows, out_channels]
  size_t bytes;

  explicit Workspace(const GatherGemmScatterParams& params) {
    const MatmulGrouping& grouping = *params.grouping;
    const ConstRows& in = params.operands.in;
    const int64_t value_bytes = SizeOf(in.dtype);
    WorkspaceCutter cutter(params.workspace);
    gathered = cutter.Take<char>(grouping.num_gathered_rows * in.channels * value_bytes);
    products = cutter.Take<char>(grouping.num_product_rows * params.operands.out.channels * value_bytes);
    bytes = cutter.bytes();
  }
};

}  // namespace

size_t GatherGemmScatterWorkspaceBytes(const GatherGemmScatterParams& params) { return Workspace(params).bytes; }

cudaError_t MultiplyGroups(const GatherGemmScatterParams& params, const void* gathered, void* products, Gemm& gemm) {
  const PairTablesView& tables = params.tables;
  const MatmulGrouping& grouping = *params.grouping;
  const ConstRows& in = params.operands.in;
  const int32_t in_channels = in.channels, out_channels = params.operands.out.channels;
  const int64_t weight_values = int64_t{in_channels} * out_channels;
  const auto weights_at = [&](int64_t position) {
    const auto* const weights = static_cast<const char*>(params.operands.weights);
    return ConstRows::Packed(weights + position * weight_values * SizeOf(in.dtype), in.dtype, in_channels,
                             out_channels);
  };
  const ConstRows gathered_rows = ConstRows::Packed(gathered, in.dtype, grouping.num_gathered_rows, in_channels);
  const Rows product_rows = Rows::Packed(products, in.dtype, grouping.num_product_rows, out_channels);
  for (const MatmulGroup& group : grouping.groups) {
    const int64_t end = group.begin + group.rows;  // the end of the first product's rows
    VOXSERVE_RETURN_IF_CUDA(gemm.Multiply({.a = gathered_rows.RowRange(group.begin, end),
                                           .b = weights_at(group.first),
                                           .c = product_rows.RowRange(group.begin, end),
                                           .count = group.count,
                                           .a_stride = group.rows * in_channels,
                                           .b_stride = weight_values,
                                           .c_stride = group.rows * out_channels}));
  }
  if (grouping.num_product_rows == grouping.num_gathered_rows) return cudaSuccess;
  // The weights are in walk order. The identity is last in a symmetric walk; in any other walk its position is the
  // index of its offset.
  const int32_t identity = params.is_symmetric ? tables.num_offsets - 1 : tables.identity_offset;
  ConstRows rows = in;
  rows.capacity = grouping.num_product_rows - grouping.num_gathered_rows;
  return gemm.Multiply({.a = rows,
                        .b = weights_at(identity),
                        .c = product_rows.RowRange(grouping.num_gathered_rows, grouping.num_product_rows)});
}

cudaError_t GatherGemmScatter(const GatherGemmScatterParams& params, Gemm& gemm, cudaStream_t stream) {
  const PairTablesView& tables = params.tables;
  const ConvOperands& operands = params.operands;
  if (tables.num_out_rows == 0) return cudaSuccess;
  if (tables.num_offsets > kMaxKernelVolume || stream != gemm.stream()) return cudaErrorInvalidValue;
  // A symmetric walk packs the weights of the centre last, so only the centre can be the identity.
  if (params.is_symmetric && tables.identity_offset >= 0 && tables.identity_offset != tables.num_offsets / 2) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("GatherGemmScatter");
  const MatmulGrouping& grouping = *params.grouping;
  if (grouping.num_product_rows > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const Workspace workspace(params);

  OffsetShifts scatter_shifts;
  for (int32_t k = 0; k < tables.num_offsets; ++k) {
    const int64_t begin = grouping.buffer_begin[static_cast<size_t>(k)];
    scatter_shifts.shift[k] =
        begin < 0 ? OffsetShifts::kNotMoved : static_cast<int32_t>(begin - tables.offset_begin[k]);
  }
  if (grouping.num_gathered_rows > 0) {
    OffsetShifts gather_shifts = scatter_shifts;
    if (tables.identity_offset >= 0) gather_shifts.shift[tables.identity_offset] = OffsetShifts::kNotMoved;
    VOXSERVE_RETURN_IF_CUDA(GatherAllOffsets(
        {.tables = tables, .shifts = gather_shifts, .from = operands.in, .to = workspace.gathered}, stream));
  }
  VOXSERVE_RETURN_IF_CUDA(MultiplyGroups(params, workspace.gathered, workspace.products, gemm));
  return ScatterAllOffsets({.tables = tables,
                            .shifts = scatter_shifts,
                            .dtype = operands.in.dtype,
                            .from = workspace.products,
                            .to = operands.out,
                            .epilogue = operands.epilogue},
                           stream);
}

}  // namespace voxserve::kernels::cuda
