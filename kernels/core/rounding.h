#pragma once

// Rounding of float32 values to integers, with equal results on the CPU and in kernels. Written out by hand because the
// library's functions are real calls on a baseline x86-64.

#include <cmath>
#include <cstdint>

namespace voxserve::kernels {

// From 2^23 on every float is an integer. A smaller value loses its fraction when 2^23 is added.
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
