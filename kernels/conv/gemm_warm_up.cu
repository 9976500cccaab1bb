#include "kernels/conv/gemm_warm_up.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int64_t kFewestRows = 16;
// Limits the rows of all products of a group together. Larger groups are rare.
constexpr int64_t kMostProductRows = int64_t{1} << 20;

}  // namespace

cudaError_t WarmUpGemm(const GemmWarmUpParams& params, Gemm& gemm) {
  if (params.in_channels == 0 || params.out_channels == 0) return cudaSuccess;
  const NvtxRange range("WarmUpGemm");
  const int64_t value_bytes = SizeOf(params.dtype);
  const auto in_channels = static_cast<int32_t>(params.in_channels);
  const auto out_channels = static_cast<int32_t>(params.out_channels);
  const int64_t weight_values = params.in_channels * params.out_channels;
  char* const memory = static_cast<char*>(params.memory);
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  // Larger groups contain whole pairs of mirrored offsets, so their counts are even.
  for (int64_t count = 1; count <= params.max_count; count += count < 8 ? 1 : 2) {
    const int64_t products_begin = aligned(count * weight_values * value_bytes);
    for (int64_t rows = kFewestRows; rows <= params.max_rows; rows = Gemm::RoundedRows(rows + 1)) {
      const int64_t gathered_begin = products_begin + aligned(count * rows * params.out_channels * value_bytes);
      const int64_t end = gathered_begin + count * rows * params.in_channels * value_bytes;
      if (count * rows > kMostProductRows || end > params.memory_bytes) break;
      VOXSERVE_RETURN_IF_CUDA(
          gemm.Prepare({.a = ConstRows::Packed(memory + gathered_begin, params.dtype, rows, in_channels),
                        .b = ConstRows::Packed(memory, params.dtype, in_channels, out_channels),
                        .c = Rows::Packed(memory + products_begin, params.dtype, rows, out_channels),
                        .count = count,
                        .a_stride = rows * in_channels,
                        .b_stride = weight_values,
                        .c_stride = rows * out_channels}));
    }
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
