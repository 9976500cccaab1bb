#pragma once

// Chunks cuts an index range into equal parts (the last may be smaller), for CPU code that counts in one pass and
// writes in the next. Part i has the same indices in both passes, and it does not matter which thread computes it. So a
// prefix sum over the parts' counts gives the first output position of each part.

#include <algorithm>
#include <cstdint>

#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

class Chunks {
 public:
  // Makes at most as many parts as the pool has threads. No part (save the last) is smaller than min_size.
  Chunks(int64_t count, int64_t min_size, const ThreadPool& pool)
      : count_(count), size_(std::max(min_size, (count + pool.num_threads() - 1) / pool.num_threads())) {}

  int64_t num_chunks() const { return (count_ + size_ - 1) / size_; }
  int64_t Begin(int64_t chunk) const { return chunk * size_; }
  int64_t End(int64_t chunk) const { return std::min(count_, (chunk + 1) * size_); }

  // Calls body(chunk, begin, end) for every part, on the pool's threads.
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

// Replaces every count, an int64_t, by the sum of the counts before it. Returns the sum of all counts.
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
