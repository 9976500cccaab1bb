#pragma once

// Equal parts of an index range, for kernels that count in one pass and write in the next: part i of both passes covers
// the same indices, so a prefix sum over the parts' counts says where each one writes, whatever thread runs it.

#include <algorithm>
#include <cstdint>

#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

class Chunks {
 public:
  // As many parts as threads, but none (save the last) smaller than min_size.
  Chunks(int64_t count, int64_t min_size, const ThreadPool& pool)
      : count_(count), size_(std::max(min_size, (count + pool.num_threads() - 1) / pool.num_threads())) {}

  int64_t num_chunks() const { return (count_ + size_ - 1) / size_; }
  int64_t Begin(int64_t chunk) const { return chunk * size_; }
  int64_t End(int64_t chunk) const { return std::min(count_, (chunk + 1) * size_); }

  // body(chunk, begin, end) for every part.
  template <typename Body>
  void ForEach(ThreadPool& pool, const Body& body) const {
    pool.ParallelFor(num_chunks(), 1, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) body(chunk, Begin(chunk), End(chunk));
    });
  }

 private:
  int64_t count_;
  int64_t size_;
};

// Replaces every count, an int64_t, by the sum of those before it; returns the sum of all.
template <typename Counts>
int64_t ExclusivePrefixSum(Counts& counts) {
  int64_t sum = 0;
  for (int64_t& count : counts) {
    const int64_t here = count;
    count = sum;
    sum += here;
  }
  return sum;
}

}  // namespace voxserve::kernels
