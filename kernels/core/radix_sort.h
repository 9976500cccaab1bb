#pragma once

// This header has a stable radix sort for the CPU, which begins with the least significant digit. In every pass over a
// digit, each thread has its own histogram.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/chunks.h"
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
