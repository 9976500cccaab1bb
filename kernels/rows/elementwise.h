#pragma once

// CombineRows computes out = function(a, b), value by value. The arithmetic is float32.
//
// - `a`, `b` and `out` have the same rows. Each of `a` and `b` has out's channels, or 1 channel, whose value counts for
//   all channels of its row.
// - `b` has a's type; `out` has a's type or float32. The CPU only supports float32.
// - `out` may be `a` or `b` itself if it has the same type, channels and pitch.
// - As in PyTorch, x / 0 is infinite, 0 / 0 is NaN, and the larger or smaller of NaN and a number is NaN.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class Elementwise : int32_t { kAdd, kSubtract, kMultiply, kDivide, kMaximum, kMinimum };

struct CombineRowsParams {
  Elementwise function = Elementwise::kMultiply;
  float epsilon = 0;  // for kDivide: added to the divisor
  ConstRows a;
  ConstRows b;
  Rows out;
};
static_assert(std::is_trivially_copyable_v<CombineRowsParams>);

// Returns a call of visit with a function of two values that computes params.function.
template <typename Visitor>
constexpr auto VisitElementwise(const CombineRowsParams& params, const Visitor& visit) {
  switch (params.function) {
    case Elementwise::kAdd:
      return visit([](float a, float b) { return a + b; });
    case Elementwise::kSubtract:
      return visit([](float a, float b) { return a - b; });
    case Elementwise::kDivide:
      // A sum would make 0 of -0, and so infinity of -infinity.
      if (params.epsilon == 0) return visit([](float a, float b) { return a / b; });
      return visit([epsilon = params.epsilon](float a, float b) { return a / (b + epsilon); });
    case Elementwise::kMaximum:
      return visit([](float a, float b) { return LargerOrNan(a, b); });
    case Elementwise::kMinimum:
      return visit([](float a, float b) { return SmallerOrNan(a, b); });
    case Elementwise::kMultiply:
      break;
  }
  return visit([](float a, float b) { return a * b; });
}

namespace cpu {

void CombineRows(const CombineRowsParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t CombineRows(const CombineRowsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
