#pragma once

// The channel of the largest value of each row; ties go to the lowest channel. A row of which some value is NaN or
// infinite gets a label that says so.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ArgmaxParams {
  ConstRows in;                  // 1 to 65,536 channels; the CPU has float32 alone
  Rows labels;                   // as many rows, one channel of uint8 or uint16, packed
  int32_t not_finite_label = 0;  // in a label's type
};
static_assert(std::is_trivially_copyable_v<ArgmaxParams>);

namespace cpu {

void Argmax(const ArgmaxParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Argmax(const ArgmaxParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
