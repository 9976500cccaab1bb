#pragma once

// out = epilogue(in * scale) row by row: a batch norm that could not be folded (scale, bias), an addition (residual),
// an activation, and, with none of them, a copy of columns (a concatenation that could not be written in place).

#include <cstdint>
#include <type_traits>

#include "kernels/epilogue.h"
#include "kernels/thread_pool.h"

namespace voxserve::kernels {

struct ScaleShiftParams {
  int64_t num_rows = 0;
  int32_t channels = 0;
  const float* in = nullptr;     // [num_rows, channels], rows in_pitch apart
  int64_t in_pitch = 0;          // floats
  const float* scale = nullptr;  // [channels]; null: 1
  float* out = nullptr;          // [num_rows, channels], rows out_pitch apart; may be `in`
  int64_t out_pitch = 0;
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<ScaleShiftParams>);

namespace cpu {

void ScaleShift(const ScaleShiftParams& params, ThreadPool& pool);

}  // namespace cpu
}  // namespace voxserve::kernels
