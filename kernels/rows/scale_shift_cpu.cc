#include <algorithm>
#include <cassert>

#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kScaleShiftBlockRows = 2048;

// Returns null if rows.data is null.
const float* RowOf(const ConstRows& rows, int64_t row) { return rows.data == nullptr ? nullptr : rows.floats(row); }

}  // namespace

void ScaleShift(const ScaleShiftParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32 &&
         params.bias_dtype == DType::kFloat32);
  pool.ParallelFor(params.out.capacity, kScaleShiftBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = params.in.floats(row);
      const float* const scale = params.scale;
      WriteRow(params.epilogue, params.out, row,
               [=](int32_t c) { return scale == nullptr ? in[c] : in[c] * scale[c]; });
    }
  });
}

void SampleScaleShift(const SampleScaleShiftParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  pool.ParallelFor(params.out.capacity, kScaleShiftBlockRows, [&](int64_t begin, int64_t end) {
    const int64_t* const ends = params.sample_begin + 1;
    int64_t sample = std::upper_bound(ends, ends + params.num_samples, begin) - ends;
    for (int64_t row = begin; row < end; ++row) {
      while (row >= ends[sample]) ++sample;
      const float* const in = RowOf(params.in, row);
      const float* const centre = RowOf(params.centre, sample);
      const float* const scale = RowOf(params.scale, sample);
      const float* const shift = RowOf(params.shift, sample);
      WriteRow(params.epilogue, params.out, row, [=](int32_t c) {
        float value = in == nullptr ? 0.0f : in[c];
        if (centre != nullptr) value -= centre[c];
        if (scale != nullptr) value *= scale[c];
        if (shift != nullptr) value += shift[c];
        return value;
      });
    }
  });
}

}  // namespace voxserve::kernels::cpu
