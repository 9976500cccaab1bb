#pragma once

// A linear layer on the rows of a tensor: out = epilogue(in W). Also a 1x1 convolution, which is the same thing.

#include <cstdint>
#include <type_traits>

#include "kernels/epilogue.h"
#include "kernels/thread_pool.h"

namespace voxserve::kernels {

struct LinearParams {
  int64_t num_rows = 0;
  const float* in = nullptr;  // [num_rows, in_channels], rows in_pitch apart
  int64_t in_pitch = 0;       // floats, as all pitches
  int32_t in_channels = 0;
  const float* weights = nullptr;  // [in_channels, out_channels]
  float* out = nullptr;            // [num_rows, out_channels], rows out_pitch apart; must not overlap `in`
  int64_t out_pitch = 0;
  int32_t out_channels = 0;
  Epilogue epilogue;
};
static_assert(std::is_trivially_copyable_v<LinearParams>);

namespace cpu {

void Linear(const LinearParams& params, ThreadPool& pool);

}  // namespace cpu
}  // namespace voxserve::kernels
