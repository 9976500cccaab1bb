#pragma once

// This header rounds float32 values to integers, with equal results on the CPU and in CUDA kernels. The functions are
// written out by hand, because on a baseline x86-64 the library's functions are real calls.

#include <cmath>
#include <cstdint>

namespace voxserve::kernels {

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
