#pragma once

// This header tests whether floats are finite, with the same code on the CPU and the GPU.

#include <limits>

namespace voxserve::kernels {

// Returns false for infinities and for NaN.
constexpr bool IsFinite(float value) {
  return value >= std::numeric_limits<float>::lowest() && value <= std::numeric_limits<float>::max();
}

}  // namespace voxserve::kernels
