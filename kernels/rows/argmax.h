#pragma once

// Argmax finds the channel of the largest value of each row: the row's label. If several values are the largest, the
// lowest of their channels is the label. A row with a NaN or infinite value gets not_finite_label.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ArgmaxParams {
  ConstRows in;                  // 1 to 65,536 channels; the CPU only supports float32
  Rows labels;                   // output: in's rows, one channel of uint8 or uint16, packed
  int32_t not_finite_label = 0;  // must fit the label's type
};
static_assert(std::is_trivially_copyable_v<ArgmaxParams>);

namespace cpu {

void Argmax(const ArgmaxParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Argmax(const ArgmaxParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
