#pragma once

// NormalizeRows computes each row from the channels of the same row. The norms keep the channels:
//  - kSoftmax: exp(x - largest) / sum of exp(x - largest). The result is NaN if a value of the row is NaN or +infinity,
//    or if all values are -infinity.
//  - kLayerNorm: activation((x - mean) / sqrt(variance + epsilon) * weight + bias + residual), with the biased
//  variance.
//  - kL2: x / max(sqrt(sum of x^2), epsilon).
// The reductions make one channel of them:
//  - kSum, kMean.
//  - kMax, kMin: NaN if a value of the row is NaN.
//  - kLength: sqrt(sum of x^2).
//
// Sums are float32. Their order depends only on the number of channels, so a row's bits do not depend on the other
// rows. `out` has in's rows, in's type or float32, and in's channels or 1. It must not overlap `in`. The CPU only
// supports float32.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class RowNorm : int32_t { kSoftmax, kLayerNorm, kL2, kSum, kMean, kMax, kMin, kLength };

// Returns whether the result has one channel.
constexpr bool IsReduction(RowNorm kind) { return kind >= RowNorm::kSum; }

struct RowNormParams {
  RowNorm kind = RowNorm::kSoftmax;
  float epsilon = 0;              // for kLayerNorm and kL2
  const float* weight = nullptr;  // for kLayerNorm, [channels]; null: all are 1
  const float* bias = nullptr;    // for kLayerNorm, [channels]; null: all are 0
  ConstRows residual;             // for kLayerNorm, in's rows, channels and type; null data: none. May be `out` itself
  Activation activation;          // for kLayerNorm
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
