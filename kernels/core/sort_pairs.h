#pragma once

// Sorts pairs of a key and a value on a GPU, stably and ascending, by a radix sort of 8 bits a pass (Adinets and
// Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", 2022), with CUB's kernels.
//
// cub::DeviceRadixSort does the same for long arrays. A batch sorts some 100,000 pairs, where the time goes into gaps
// between small kernels: it clears its scratch before every pass, and its tiles leave most of the GPU idle. Here one
// memset clears everything, and tiles are smaller (tests/bench/results/2026-11-26-h200.md).

#include <cstddef>
#include <cstdint>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels::cuda {

// Two buffers of pairs in device memory. Key: uint32_t or uint64_t.
template <typename Key>
struct PairBuffers {
  Key* keys[2] = {};
  int32_t* values[2] = {};
  int current = 0;  // the buffer that holds the pairs

  Key* current_keys() const { return keys[current]; }
  int32_t* current_values() const { return values[current]; }
};

// Returns the bytes of scratch that SortPairs needs for up to num_pairs pairs and any number of bits. Above a million
// pairs it asks CUB, which needs a device.
template <typename Key>
size_t SortPairsScratchBytes(int64_t num_pairs);

// Sorts the pairs by the lowest num_bits bits of their keys, and sets buffers.current to the buffer with the result.
// num_pairs: 0 to 2^31 - 1. num_bits: 0 to the bits of a key. Returns cudaErrorInvalidValue for other numbers.
template <typename Key>
cudaError_t SortPairs(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
