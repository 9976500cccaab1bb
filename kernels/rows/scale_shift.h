#pragma once

// out = epilogue((in - centre) * scale + shift), row by row.
//
// - ScaleShift has one scale for all rows. It serves a batch norm that could not be folded (scale, bias), an addition
//   (residual), an activation or, with none of them, a copy of columns (a concatenation that could not be written in
//   place).
// - SampleScaleShift takes its factors from the row of the row's sample. It broadcasts a sample's row to its sites
//   (shift alone: copies or adds; scale alone: multiplies), and is the last pass of instance and group norms (centre
//   and scale, with the bias in the epilogue).
//
// `out` has as many rows as `in`, in in's type or float32. It may be `in` or the residual itself if it has the same
// type and pitch. The CPU only supports float32.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ScaleShiftParams {
  ConstRows in;
  const float* scale = nullptr;  // [out.channels]; null: 1
  Rows out;
  DType bias_dtype = DType::kFloat32;  // float32, or out's type
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScaleShiftParams>);

struct SampleScaleShiftParams {
  int32_t num_samples = 0;                // at least one if there are rows
  const int64_t* sample_begin = nullptr;  // [num_samples + 1] first row of each sample
  ConstRows in;                           // null data: 0, with the residual's type
  // [num_samples, out.channels], all in the same type: in's or float32.
  ConstRows centre;  // null data: 0
  ConstRows scale;   // null data: 1
  ConstRows shift;   // null data: 0
  Rows out;
  Epilogue epilogue;  // its bias is float32
};
static_assert(std::is_trivially_copyable_v<SampleScaleShiftParams>);

namespace cpu {

void ScaleShift(const ScaleShiftParams& params, ThreadPool& pool);
void SampleScaleShift(const SampleScaleShiftParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t ScaleShift(const ScaleShiftParams& params, cudaStream_t stream);
cudaError_t SampleScaleShift(const SampleScaleShiftParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
