#pragma once

// These definitions lay out arrays that share one block of device memory. Each array is aligned like one of CUDA's own
// allocations, so that kernels may read it in whole words.

#include <cstdint>

namespace voxserve {

inline constexpr int64_t kArrayAlignment = 256;

// Returns the bytes that an array of this many bytes takes in the block.
constexpr int64_t AlignedBytes(int64_t bytes) {
  return (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

}  // namespace voxserve
