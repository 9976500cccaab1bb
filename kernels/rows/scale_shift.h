#pragma once

// out = epilogue(in * scale) row by row: a batch norm that could not be folded (scale, bias), an addition (residual),
// an activation, and, with none of them, a copy of columns (a concatenation that could not be written in place).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ScaleShiftParams {
  int64_t num_rows = 0;
  int32_t channels = 0;
  DType dtype = DType::kFloat32;       // of in and residual; the CPU has float32 alone
  DType out_dtype = DType::kFloat32;   // of out: dtype, or float32
  DType bias_dtype = DType::kFloat32;  // of the bias: float32, or out_dtype
  const void* in = nullptr;            // [num_rows, channels], rows in_pitch apart
  int64_t in_pitch = 0;                // values
  const float* scale = nullptr;        // [channels]; null: 1
  void* out = nullptr;                 // [num_rows, channels], rows out_pitch apart; may be `in` or the residual
  int64_t out_pitch = 0;               //   itself, where it has their dtype and pitch
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScaleShiftParams>);

namespace cpu {

void ScaleShift(const ScaleShiftParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t ScaleShift(const ScaleShiftParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
