#include <limits>

#include "kernels/conv/gather_gemm_scatter.h"
#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The buffers between the passes.
struct Workspace {
  char* gathered;  // [num_gathered_rows, in_channels]
  char* products;  // [num_product_rows, out_channels]
  size_t bytes;

  explicit Workspace(const GatherGemmScatterParams& params) {
    const MatmulGrouping& grouping = *params.grouping;
    const int64_t value_bytes = SizeOf(params.dtype);
    WorkspaceCutter cutter(params.workspace);
    gathered = cutter.Take<char>(grouping.num_gathered_rows * params.in_channels * value_bytes);
    products = cutter.Take<char>(grouping.num_product_rows * params.out_channels * value_bytes);
    bytes = cutter.bytes();
  }
};

}  // namespace

size_t GatherGemmScatterWorkspaceBytes(const GatherGemmScatterParams& params) { return Workspace(params).bytes; }

cudaError_t MultiplyGroups(const GatherGemmScatterParams& params, const void* gathered, void* products, Gemm& gemm) {
  const PairTablesView& tables = params.tables;
  const MatmulGrouping& grouping = *params.grouping;
  const DType dtype = params.dtype;
  const int32_t in_channels = params.in_channels, out_channels = params.out_channels;
  const int64_t weight_values = int64_t{in_channels} * out_channels;
  const auto weights_at = [&](int64_t position) {
    const auto* const weights = static_cast<const char*>(params.weights);
    return ConstRows::Packed(weights + position * weight_values * SizeOf(dtype), dtype, in_channels, out_channels);
  };
  const ConstRows gathered_rows = ConstRows::Packed(gathered, dtype, grouping.num_gathered_rows, in_channels);
  const Rows product_rows = Rows::Packed(products, dtype, grouping.num_product_rows, out_channels);
  for (const MatmulGroup& group : grouping.groups) {
    const int64_t end = group.begin + group.rows;  // of the first product
    VOXSERVE_RETURN_IF_CUDA(gemm.Multiply({.a = gathered_rows.RowRange(group.begin, end),
                                           .b = weights_at(group.first),
                                           .c = product_rows.RowRange(group.begin, end),
                                           .count = group.count,
                                           .a_stride = group.rows * in_channels,
                                           .b_stride = weight_values,
                                           .c_stride = group.rows * out_channels}));
  }
  if (grouping.num_product_rows == grouping.num_gathered_rows) return cudaSuccess;
  // The identity stands last in a symmetric walk, and at its own number in any other.
  const int32_t identity = params.is_symmetric ? tables.num_offsets - 1 : tables.identity_offset;
  const int64_t num_rows = grouping.num_product_rows - grouping.num_gathered_rows;
  return gemm.Multiply(
      {.a =
           {.data = params.in, .dtype = dtype, .channels = in_channels, .pitch = params.in_pitch, .capacity = num_rows},
       .b = weights_at(identity),
       .c = product_rows.RowRange(grouping.num_gathered_rows, grouping.num_product_rows)});
}

cudaError_t GatherGemmScatter(const GatherGemmScatterParams& params, Gemm& gemm, cudaStream_t stream) {
  const PairTablesView& tables = params.tables;
  if (tables.num_out_rows == 0) return cudaSuccess;
  if (tables.num_offsets > kMaxKernelVolume || stream != gemm.stream()) return cudaErrorInvalidValue;
  // A symmetric walk puts the weights of its centre last; no other offset can be the identity there.
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
    VOXSERVE_RETURN_IF_CUDA(GatherAllOffsets({.tables = tables,
                                              .shifts = gather_shifts,
                                              .dtype = params.dtype,
                                              .from = params.in,
                                              .from_pitch = params.in_pitch,
                                              .channels = params.in_channels,
                                              .to = workspace.gathered},
                                             stream));
  }
  VOXSERVE_RETURN_IF_CUDA(MultiplyGroups(params, workspace.gathered, workspace.products, gemm));
  return ScatterAllOffsets({.tables = tables,
                            .shifts = scatter_shifts,
                            .dtype = params.dtype,
                            .out_dtype = params.out_dtype,
                            .from = workspace.products,
                            .channels = params.out_channels,
                            .to = params.out,
                            .to_pitch = params.out_pitch,
                            .epilogue = params.epilogue},
                           stream);
}

}  // namespace voxserve::kernels::cuda
