#pragma once

// This header tests whether float32 values are finite, and rounds them to integers, with equal results on the CPU and
// in CUDA kernels. The functions are written out by hand, because on a baseline x86-64 the library's functions are real
// calls.

#include <cmath>
#include <cstdint>
#include <limits>

namespace voxserve::kernels {

// Returns false for infinities and for NaN.
constexpr bool IsFinite(float value) {
  return value >= std::numeric_limits<float>::lowest() && value <= std::numeric_limits<float>::max();
}

// Every float of at least 2^23 is an integer. A smaller positive float loses its fraction (rounded half to even) when
// 2^23 is added.
inline constexpr float kFirstAllInteger = 8388608.0F;

constexpr float RoundHalfEven(float value) {
  const float magnitude = std::fabs(value);
  return magnitude < kFirstAllInteger ? std::copysign(magnitude + kFirstAllInteger - kFirstAllInteger, value) : value;
}

constexpr float Floor(float value) {
  if (!(std::fabs(value) < kFirstAllInteger)) return value;
  const auto truncated = static_cast<float>(static_cast<int32_t>(value));
  return truncated > value ? truncated - 1.0F : truncated;
}

}  // namespace voxserve::kernels
