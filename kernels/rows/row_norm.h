#pragma once

// NormalizeRows computes each row from the channels of the same row. The norms keep the channels:
//  - kSoftmax: exp(x - largest) / sum of exp(x - largest). The result is NaN if a value of the row is NaN or +infinity,
//    or if all values are -infinity.
//  - kLayerNorm: activation((x - mean) / sqrt(variance + epsilon) * weight + bias + residual), with the biased
//    variance. A second layer norm may follow, which normalizes the result as it is stored. A row is then read once for
//    both norms, and the bytes are those of two calls.
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

// A layer norm of a layer norm's result.
struct SecondLayerNorm {
  float epsilon = 0;
  const float* weight = nullptr;  // [channels]; null: all are 1
  const float* bias = nullptr;    // [channels]; null: all are 0
  Rows out;  // null data: there is no second norm. The first one's `out` has this type and in's type, and may not
             // overlap
};

struct RowNormParams {
  RowNorm kind = RowNorm::kSoftmax;
  float epsilon = 0;              // for kLayerNorm and kL2
  const float* weight = nullptr;  // for kLayerNorm, [channels]; null: all are 1
  const float* bias = nullptr;    // for kLayerNorm, [channels]; null: all are 0
  ConstRows residual;             // for kLayerNorm, in's rows, channels and type; null data: none. May be `out` itself
  Activation activation;          // for kLayerNorm
  ConstRows in;
  Rows out;
  SecondLayerNorm second;  // for kLayerNorm
};
static_assert(std::is_trivially_copyable_v<RowNormParams>);

// Returns the second layer norm of params as a call of its own.
inline RowNormParams SecondNormOf(const RowNormParams& params) {
  return {.kind = RowNorm::kLayerNorm,
          .epsilon = params.second.epsilon,
          .weight = params.second.weight,
          .bias = params.second.bias,
          .in = params.out,
          .out = params.second.out};
}

namespace cpu {

void NormalizeRows(const RowNormParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns cudaErrorInvalidValue for a second norm of another kind than kLayerNorm, or of several types.
cudaError_t NormalizeRows(const RowNormParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
