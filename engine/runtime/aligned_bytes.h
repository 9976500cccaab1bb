#pragma once

// How arrays lie that share a block of a device's memory: each begins where CUDA's own allocations may, so that any
// kernel may read it whole words at a time.

#include <cstdint>

namespace voxserve {

inline constexpr int64_t kArrayAlignment = 256;

// What an array of so many bytes takes of the block.
constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

}  // namespace voxserve
