#pragma once

// Normalises each row by its own channels:
//  - kSoftmax: exp(x - largest) / sum of exp(x - largest). A row with NaN or +infinity, or of -infinity alone, is NaN.
//  - kLayerNorm: (x - mean) / sqrt(variance + epsilon) * weight + bias, with the biased variance.
//  - kL2: x / max(sqrt(sum of x^2), epsilon).
//
// Sums are float32 in an order that depends on the number of channels alone, so a row's bytes do not depend on the
// other rows. `out` has in's rows and channels, in in's type or float32, and does not overlap with `in`. The CPU only
// supports float32.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class RowNorm : int32_t { kSoftmax, kLayerNorm, kL2 };

struct RowNormParams {
  RowNorm kind = RowNorm::kSoftmax;
  float epsilon = 0;              // of kLayerNorm and kL2
  const float* weight = nullptr;  // of kLayerNorm, [channels]; null: 1
  const float* bias = nullptr;    // of kLayerNorm, [channels]; null: 0
  ConstRows in;
  Rows out;
};
static_assert(std::is_trivially_copyable_v<RowNormParams>);

namespace cpu {

void NormalizeRows(const RowNormParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t NormalizeRows(const RowNormParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
