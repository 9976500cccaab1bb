#pragma once

// PRelu computes out = in if in >= 0, and out = slope * in if in < 0, with a slope for each channel (K. He et al.,
// "Delving Deep into Rectifiers", ICCV 2015). NaN stays NaN.
//
// `out` has in's rows and channels, and in's type or float32. `out` may be `in` itself if it has the same type and
// pitch. The CPU only supports float32.

#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PReluParams {
  ConstRows in;
  const float* slopes = nullptr;  // [channels]
  Rows out;
};
static_assert(std::is_trivially_copyable_v<PReluParams>);

namespace cpu {

void PRelu(const PReluParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t PRelu(const PReluParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
