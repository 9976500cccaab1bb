#include <algorithm>
#include <cassert>

#include "kernels/rows/sample_scale_shift.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 2048;

const float* Row(const void* rows, int64_t pitch, int64_t row) {
  return rows == nullptr ? nullptr : static_cast<const float*>(rows) + row * pitch;
}

}  // namespace

void SampleScaleShift(const SampleScaleShiftParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32 && params.out_dtype == DType::kFloat32 &&
         params.factor_dtype == DType::kFloat32);
  const auto* bias = static_cast<const float*>(params.epilogue.bias);
  pool.ParallelFor(params.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    const int64_t* const ends = params.sample_begin + 1;
    int64_t sample = std::upper_bound(ends, ends + params.num_samples, begin) - ends;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= ends[sample]) ++sample;
      const float* in = Row(params.in, params.in_pitch, row);
      const float* centre = Row(params.centre, params.factor_pitch, sample);
      const float* scale = Row(params.scale, params.factor_pitch, sample);
      const float* shift = Row(params.shift, params.factor_pitch, sample);
      const float* residual = Row(params.epilogue.residual.data, params.epilogue.residual.pitch, row);
      float* out = static_cast<float*>(params.out) + row * params.out_pitch;
      for (int32_t c = 0; c < params.channels; ++c) {
        float value = in == nullptr ? 0.0f : in[c];
        if (centre != nullptr) value -= centre[c];
        if (scale != nullptr) value *= scale[c];
        if (shift != nullptr) value += shift[c];
        if (bias != nullptr) value += bias[c];
        if (residual != nullptr) value += residual[c];
        out[c] = value;
      }
      ActivateRow(params.epilogue.activation, out, params.channels);
    }
  });
}

}  // namespace voxserve::kernels::cpu
