#pragma once

// SampleBoundsKernel finds the smallest and largest coordinate of every sample of a level, per axis. Only .cu files
// include this header.

#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/morton_key.h"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// The bounds of one sample's coordinates per axis, in the form of a key's fields: coordinate + bias. The largest field
// is stored as its complement, so that atomicMin updates both bounds. All bits are 1 for a sample without coordinates.
struct FieldBounds {
  uint32_t lowest[kMaxDimension];
  uint32_t highest_complement[kMaxDimension];
};

inline constexpr int64_t kBoundsBlockRows = 2048;
inline unsigned NumBoundsBlocks(int64_t capacity) { return NumBlocks(capacity, static_cast<int>(kBoundsBlockRows)); }

// An integer type that holds sums and differences of a few coordinates.
template <int kDimension>
using FieldInteger = std::conditional_t<(MortonKey<kDimension>::kAxisBits < 31), int32_t, int64_t>;

// Returns coordinate + bias of one axis of a MortonKey.
template <int kDimension>
__device__ uint32_t FieldOf(uint64_t key, int axis) {
  using Key = MortonKey<kDimension>;
  return static_cast<uint32_t>(static_cast<int64_t>(Key::Coordinate(key, axis)) + static_cast<int64_t>(Key::kBias));
}

// keys: [capacity] MortonKeys, ascending. num_keys: [1]; null: capacity keys exist. bounds: [num_samples]; the caller
// sets all bits to 1 before the launch. The grid has NumBoundsBlocks(capacity) blocks of kBlockThreads threads.
template <int kDimension>
__global__ void SampleBoundsKernel(const uint64_t* keys, int64_t capacity, const int64_t* num_keys,
                                   FieldBounds* bounds) {
  using Key = MortonKey<kDimension>;
  const int64_t num_rows = NumRows(capacity, num_keys);
  const int64_t begin = int64_t{blockIdx.x} * kBoundsBlockRows;
  const int64_t end = begin + kBoundsBlockRows < num_rows ? begin + kBoundsBlockRows : num_rows;
  if (begin >= end) return;

  const int32_t sample = Key::Sample(keys[begin]);
  if (sample != Key::Sample(keys[end - 1])) {
    // The block has rows of several samples, which is rare.
    for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) {
      FieldBounds& of_row = bounds[Key::Sample(keys[row])];
      for (int axis = 0; axis < kDimension; ++axis) {
        const uint32_t field = FieldOf<kDimension>(keys[row], axis);
        atomicMin(&of_row.lowest[axis], field);
        atomicMin(&of_row.highest_complement[axis], ~field);
      }
    }
    return;
  }

  __shared__ FieldBounds of_block;
  if (threadIdx.x == 0) {
    for (int axis = 0; axis < kDimension; ++axis) {
      of_block.lowest[axis] = ~0u;
      of_block.highest_complement[axis] = ~0u;
    }
  }
  __syncthreads();
  uint32_t lowest[kDimension];
  uint32_t highest_complement[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) lowest[axis] = highest_complement[axis] = ~0u;
  for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) {
    const uint64_t key = keys[row];
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      const uint32_t field = FieldOf<kDimension>(key, axis);
      lowest[axis] = min(lowest[axis], field);
      highest_complement[axis] = min(highest_complement[axis], ~field);
    }
  }
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      lowest[axis] = min(lowest[axis], __shfl_xor_sync(~0u, lowest[axis], distance));
      highest_complement[axis] =
          min(highest_complement[axis], __shfl_xor_sync(~0u, highest_complement[axis], distance));
    }
    if (threadIdx.x % kWarpThreads == 0) {
      atomicMin(&of_block.lowest[axis], lowest[axis]);
      atomicMin(&of_block.highest_complement[axis], highest_complement[axis]);
    }
  }
  __syncthreads();
  if (threadIdx.x < kDimension) {
    const auto axis = threadIdx.x;
    atomicMin(&bounds[sample].lowest[axis], of_block.lowest[axis]);
    atomicMin(&bounds[sample].highest_complement[axis], of_block.highest_complement[axis]);
  }
}

}  // namespace voxserve::kernels::cuda
