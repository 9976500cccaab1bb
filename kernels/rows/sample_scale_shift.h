#pragma once

// out = epilogue((in - centre) * scale + shift) row by row, where centre, scale and shift are rows of the row's sample:
// the broadcast of a sample's row to its sites (shift alone: copied or added; scale alone: multiplied), and the last
// pass of instance and group norms (centre and scale, with the bias in the epilogue).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct SampleScaleShiftParams {
  int64_t num_rows = 0;  // sample_begin[num_samples]
  int32_t channels = 0;
  int32_t num_samples = 0;                // at least one where there are rows
  const int64_t* sample_begin = nullptr;  // [num_samples + 1] first row of each sample
  DType dtype = DType::kFloat32;          // of in and residual; the CPU has float32 alone
  DType out_dtype = DType::kFloat32;      // dtype, or float32
  DType factor_dtype = DType::kFloat32;   // of centre, scale and shift: dtype, or float32
  const void* in = nullptr;               // [num_rows, channels], rows in_pitch values apart; null: 0
  int64_t in_pitch = 0;
  const void* centre = nullptr;  // [num_samples, channels], rows factor_pitch values apart; null: 0
  const void* scale = nullptr;   // likewise; null: 1
  const void* shift = nullptr;   // likewise; null: 0
  int64_t factor_pitch = 0;
  // [num_rows, channels], rows out_pitch values apart; may be `in` or the residual itself, where it has their dtype and
  // pitch.
  void* out = nullptr;
  int64_t out_pitch = 0;
  Epilogue epilogue;  // its bias is float32
};
static_assert(std::is_trivially_copyable_v<SampleScaleShiftParams>);

namespace cpu {
void SampleScaleShift(const SampleScaleShiftParams& params, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
cudaError_t SampleScaleShift(const SampleScaleShiftParams& params, cudaStream_t stream);
}  // namespace cuda
}  // namespace voxserve::kernels
