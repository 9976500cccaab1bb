#pragma once

// PoolReduce says how pooling combines several rows into one, channel by channel.

#include <cstdint>

namespace voxserve::kernels {

enum class PoolReduce : int32_t { kMax, kAverage, kSum };

// Returns the larger of two values, or NaN if one of them is NaN.
constexpr float LargerOrNan(float a, float b) { return b > a || b != b ? b : a; }

// Returns the smaller of two values, or NaN if one of them is NaN.
constexpr float SmallerOrNan(float a, float b) { return b < a || b != b ? b : a; }

}  // namespace voxserve::kernels
