#pragma once

// Stable radix sorts, which begin with the least significant digit.
//
// On the CPU each thread has its own histogram in every pass over a digit.
//
// On a GPU pairs of a key and a value are sorted by 9 bits a pass (Adinets and Merrill, "Onesweep: A Faster Least
// Significant Digit Radix Sort for GPUs", 2022), with CUB's classes in kernels of our own. cub::DeviceRadixSort does
// the same for long arrays. A batch sorts some 100,000 pairs, where the time goes into gaps between small kernels and
// into tiles that wait for each other: it clears its scratch before every pass, its tiles leave most of the GPU idle,
// and each tile reads the counts of the tiles before it one by one. Here one kernel clears everything, the kernels
// start early (LaunchEarly in launch.cuh), tiles are smaller, and a tile reads the counts of eight tiles at a time. The
// first pass ranks its keys while the digits of all passes are still counted.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/chunks.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels::cpu {

inline constexpr int kRadixDigitBits = 11;  // a histogram of 16 KiB fits the L1 cache
inline constexpr int64_t kRadixMinItemsAThread = 16384;
inline constexpr int64_t kRadixMinItems = 1024;  // a comparison sort is quicker for fewer items

// Sorts items[0, count) by key_of(item), ascending; items with equal keys keep their order. Keys are below 2^key_bits.
// `items` and `scratch` both have `count` items. Returns `items` or `scratch`, whichever holds the result; the contents
// of the other are undefined.
template <typename Item, typename KeyOf>
Item* RadixSort(Item* items, Item* scratch, int64_t count, int key_bits, ThreadPool& pool, const KeyOf& key_of) {
  if (key_bits == 0) return items;
  if (count < kRadixMinItems) {
    std::stable_sort(items, items + count, [&](const Item& a, const Item& b) { return key_of(a) < key_of(b); });
    return items;
  }
  const int num_passes = (key_bits + kRadixDigitBits - 1) / kRadixDigitBits;
  const int digit_bits = (key_bits + num_passes - 1) / num_passes;
  const int64_t num_digits = int64_t{1} << digit_bits;
  const uint64_t digit_mask = static_cast<uint64_t>(num_digits) - 1;
  const Chunks chunks(count, kRadixMinItemsAThread, pool);
  std::vector<int64_t> histograms(static_cast<size_t>(chunks.num_chunks() * num_digits));

  for (int pass = 0; pass < num_passes; ++pass) {
    const int shift = pass * digit_bits;
    chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t* histogram = histograms.data() + chunk * num_digits;
      std::fill(histogram, histogram + num_digits, 0);
      for (int64_t i = begin; i < end; ++i) ++histogram[key_of(items[i]) >> shift & digit_mask];
    });
    int64_t sum = 0;
    for (int64_t digit = 0; digit < num_digits; ++digit) {
      for (int64_t chunk = 0; chunk < chunks.num_chunks(); ++chunk) {
        int64_t& entry = histograms[static_cast<size_t>(chunk * num_digits + digit)];
        const int64_t here = entry;
        entry = sum;
        sum += here;
      }
    }
    chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
      int64_t* next = histograms.data() + chunk * num_digits;
      for (int64_t i = begin; i < end; ++i) scratch[next[key_of(items[i]) >> shift & digit_mask]++] = items[i];
    });
    std::swap(items, scratch);
  }
  return items;
}

}  // namespace voxserve::kernels::cpu

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

// A run of pairs that is sorted by itself, by the lowest num_bits bits of its keys.
struct SortPart {
  int64_t num_pairs = 0;
  int num_bits = 0;  // 0 to the bits of a key
};
inline constexpr size_t kMaxSortParts = 31;  // the kernels have the parts as parameters

// Returns the bytes of scratch that SortParts needs for these parts, of which there are at most kMaxSortParts. Above
// 16 million pairs it asks CUB, which needs a device.
template <typename Key>
size_t SortPartsScratchBytes(std::span<const SortPart> parts);

// Sorts each part, and sets buffers.current to the buffer with the results. The first part begins with the first pair,
// each other part where the part before it ends. All parts share the passes' kernels, so that parts of few bits cost
// little beside others, and no key needs bits for the number of its part.
// parts: at most kMaxSortParts, together at most 2^31 - 1 pairs. Returns cudaErrorInvalidValue for other numbers.
template <typename Key>
cudaError_t SortParts(PairBuffers<Key>& buffers, std::span<const SortPart> parts, void* scratch, cudaStream_t stream);

// Returns true if SortParts leaves these parts in the other buffer than it found them in. Above 16 million pairs this
// is not known, and the result a guess.
template <typename Key>
bool SortPartsSwapsBuffers(std::span<const SortPart> parts);

// SortPairs is SortParts with one part. SortPairsScratchBytes returns what it needs for up to num_pairs pairs and any
// number of bits.
template <typename Key>
size_t SortPairsScratchBytes(int64_t num_pairs);
template <typename Key>
cudaError_t SortPairs(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
