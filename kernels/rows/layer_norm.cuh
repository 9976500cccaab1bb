#pragma once

// The arithmetic of a layer norm of a row that several threads hold in registers. Kernels that use it compute the same
// bytes, however many threads share a row: values are rounded where the code says so, not where the compiler decides
// to. Only .cu files include this header.

#include <cuda/std/bit>

#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// Combines the values of a row's threads. All these threads get the result, with the same bits: both sides of an
// exchange combine the same two values. All threads of the warp call it.
template <int kLanes, typename Combine>
__device__ float CombineLanes(float value, const Combine& combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Adds up the sums of a row's packs: sums[p] of thread i is that of pack p * kLanes + i. are_apart: packs are added in
// the order in which CombineLanes adds those of as many threads, so a row has the same bytes however many threads share
// it. Otherwise sums[0] is that of all of the thread's packs.
template <int kLanes, bool are_apart, int kPacks>
__device__ float SumOfRow(float (&sums)[kPacks]) {
  if constexpr (are_apart) {
    constexpr int half = static_cast<int>(::cuda::std::bit_ceil(unsigned{kPacks})) / 2;
#pragma unroll
    for (int distance = half; distance > 0; distance /= 2) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (p < distance && p + distance < kPacks) sums[p] += sums[p + distance];
      }
    }
  }
  return CombineLanes<kLanes>(sums[0], [](float x, float y) { return x + y; });
}

// Returns the mean of `count` values, or of their squared differences.
__device__ inline float MeanOf(float sum, float count) { return __fdiv_rn(sum, count); }

// Adds the square of a value's difference from the row's mean.
__device__ inline float AddSquare(float difference, float sum) { return __fmaf_rn(difference, difference, sum); }

// Returns the factor of a row's differences.
__device__ inline float LayerNormScale(float variance, float epsilon) { return rsqrtf(__fadd_rn(variance, epsilon)); }

// Returns a normalized value. difference: the value's, from the row's mean.
__device__ inline float Normalized(float difference, float scale, float weight, float bias, float residual) {
  return __fadd_rn(__fmaf_rn(__fmul_rn(difference, scale), weight, bias), residual);
}

}  // namespace voxserve::kernels::cuda
