#include <algorithm>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/mlp/mlp.h"
#include "kernels/rows/mlp/mlp_launch.h"

namespace voxserve::kernels::cuda {
namespace {

// Row numbers of a tile beyond the last row must fit 32 bits.
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 64;

bool IsLike(const ConstRows& rows, const Rows& out) {
  return rows.dtype == out.dtype && rows.channels == out.channels && rows.capacity >= out.capacity;
}

bool AreValid(const MlpParams& params) {
  const Rows& out = params.out;
  if (!SupportsMlp(out.dtype) || params.in.dtype != out.dtype || params.in.capacity < out.capacity) return false;
  if (out.capacity > kMaxRows) return false;
  if (params.activation != ActivationFunction::kGelu && params.activation != ActivationFunction::kRelu) return false;
  if (params.num_norms < 0 || params.num_norms > kMaxMlpNorms) return false;
  const bool has_residual = params.residual.data != nullptr;
  if (has_residual && (params.adds_normed_input || !IsLike(params.residual, out))) return false;
  if (params.adds_normed_input && params.in.channels != out.channels) return false;
  return std::all_of(params.norms, params.norms + params.num_norms, [&](const MlpNorm& norm) {
    return norm.weight != nullptr && (norm.residual.data == nullptr || IsLike(norm.residual, out));
  });
}

bool AreAligned(const MlpParams& params) {
  CommonAlignment alignment;
  alignment.Add(params.in).Add(params.out).Add(params.residual);
  for (int32_t i = 0; i < params.num_norms; ++i) alignment.Add(params.norms[i].residual);
  return alignment.bytes() == kVectorBytes;
}

}  // namespace

bool SupportsMlp(DType dtype) {
  return CodeVersion() == kWarpGroupCode && (dtype == DType::kFloat16 || dtype == DType::kBfloat16);
}

cudaError_t Mlp(const MlpParams& params, cudaStream_t stream) {
  if (!AreValid(params)) return cudaErrorInvalidValue;
  const MlpShape shape = MlpShapeOf(params.in.channels, params.hidden_channels, params.out.channels);
  if (shape.padded_in == 0) return cudaErrorInvalidValue;
  if (params.out.capacity == 0) return cudaSuccess;
  if (!AreAligned(params)) return cudaErrorInvalidValue;
  const NvtxRange range("Mlp");
  return params.out.dtype == DType::kFloat16 ? LaunchMlpHalf(shape, params, stream)
                                             : LaunchMlpBfloat16(shape, params, stream);
}

}  // namespace voxserve::kernels::cuda
