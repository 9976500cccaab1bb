#include <cassert>

#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 2048;

}  // namespace

void ScaleShift(const ScaleShiftParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32 && params.out_dtype == DType::kFloat32 &&
         params.bias_dtype == DType::kFloat32);
  const Epilogue& epilogue = params.epilogue;
  const auto* bias = static_cast<const float*>(epilogue.bias);
  pool.ParallelFor(params.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = static_cast<const float*>(params.in) + row * params.in_pitch;
      const float* residual = epilogue.residual.data == nullptr ? nullptr : epilogue.residual.floats(row);
      float* out = static_cast<float*>(params.out) + row * params.out_pitch;
      for (int32_t c = 0; c < params.channels; ++c) {
        float value = in[c];
        if (params.scale != nullptr) value *= params.scale[c];
        if (bias != nullptr) value += bias[c];
        if (residual != nullptr) value += residual[c];
        out[c] = value;
      }
      ActivateRow(epilogue.activation, out, params.channels);
    }
  });
}

}  // namespace voxserve::kernels::cpu
