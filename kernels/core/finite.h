#pragma once

// Which floats are numbers, on every device.

#include <limits>

namespace voxserve::kernels {

// False for NaN too.
constexpr bool IsFinite(float value) {
  return value >= std::numeric_limits<float>::lowest() && value <= std::numeric_limits<float>::max();
}

}  // namespace voxserve::kernels
