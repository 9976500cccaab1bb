#pragma once

// MultiplyRows computes out = in * factor, value by value.
//
// `in`, `factor` and `out` have the same rows and channels. `factor` has in's type; `out` has in's type or float32.
// `out` may be `in` or `factor` itself if it has the same type and pitch. The CPU only supports float32.

#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct MultiplyRowsParams {
  ConstRows in;
  ConstRows factor;
  Rows out;
};
static_assert(std::is_trivially_copyable_v<MultiplyRowsParams>);

namespace cpu {

void MultiplyRows(const MultiplyRowsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t MultiplyRows(const MultiplyRowsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
