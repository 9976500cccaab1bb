#pragma once

// How several rows become one, channel by channel.

#include <cstdint>

namespace voxserve::kernels {

enum class PoolReduce : int32_t { kMax, kAverage, kSum };

// The larger of two values, or the one that is NaN.
constexpr float LargerOrNan(float a, float b) { return b > a || b != b ? b : a; }

}  // namespace voxserve::kernels
