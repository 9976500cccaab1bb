#pragma once

// The layout of arrays that share one block of device memory: each begins at an address that is as aligned as one of
// CUDA's own allocations, so that kernels may read whole words.

#include <cstdint>

namespace voxserve {

inline constexpr int64_t kArrayAlignment = 256;

// Returns the bytes that an array of this many bytes takes in the block.
constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

}  // namespace voxserve
