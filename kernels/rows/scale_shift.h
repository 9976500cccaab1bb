#pragma once

// Scales and shifts the values of each row by channel, and applies an epilogue (kernels/core/epilogue.h).
//
// - ScaleShift computes out = epilogue(in * scale). All rows share one vector `scale`. The engine uses it for a batch
//   norm that could not be folded into weights (the norm's shift is the epilogue's bias), for an addition (the second
//   summand is the epilogue's residual), for an activation, and for a copy of columns (a concatenation that could not
//   be written in place).
// - SampleScaleShift computes out = epilogue((in - centre) * scale + shift). centre, scale and shift are matrices with
//   one row per sample, and each row of `in` uses the row of its sample. The engine uses it to broadcast a sample's row
//   to the sample's sites (shift alone copies or adds the row, scale alone multiplies by it), and as the last pass of
//   instance and group norms (with centre and scale; the norm's bias is the epilogue's bias).
//
// `out` has as many rows as `in`. Its type is in's type or float32; ScaleShift also copies float32 to float16 or
// bfloat16, without scale and epilogue. It may share its memory with `in` or with the residual if it has the same type
// and pitch.
//
// The CPU functions support only float32. The CUDA functions queue their kernel on the stream; they return
// cudaErrorInvalidValue for types other than those named here.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ScaleShiftParams {
  ConstRows in;
  const float* scale = nullptr;  // [out.channels] float32; null: all are 1
  Rows out;
  DType bias_dtype = DType::kFloat32;  // the type of the epilogue's bias: float32 or out's type
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScaleShiftParams>);

struct SampleScaleShiftParams {
  int32_t num_samples = 0;                // at least one if there are rows
  const int64_t* sample_begin = nullptr;  // [num_samples + 1] first row of each sample
  ConstRows in;                           // null data: all values are 0, and in.dtype is the residual's type
  // Each is [num_samples, out.channels]. All three have the same type, in's type or float32.
  ConstRows centre;  // null data: all are 0
  ConstRows scale;   // null data: all are 1
  ConstRows shift;   // null data: all are 0
  Rows out;
  Epilogue epilogue;  // the bias is float32
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
