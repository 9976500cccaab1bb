#pragma once

// Cuts an index range into equal parts, for kernels that count in one pass and write in the next. Part i has the same
// indices in both passes, so a prefix sum over the parts' counts gives each part's first output position, whichever
// thread runs it.

#include <algorithm>
#include <cstdint>

#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

class Chunks {
 public:
  // Makes as many parts as the pool has threads, but no part (save the last) smaller than min_size.
  Chunks(int64_t count, int64_t min_size, const ThreadPool& pool)
      : count_(count), size_(std::max(min_size, (count + pool.num_threads() - 1) / pool.num_threads())) {}

  int64_t num_chunks() const { return (count_ + size_ - 1) / size_; }
  int64_t Begin(int64_t chunk) const { return chunk * size_; }
  int64_t End(int64_t chunk) const { return std::min(count_, (chunk + 1) * size_); }

  // Calls body(chunk, begin, end) for every part.
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

// Replaces every count, an int64_t, by the sum of the counts before it. Returns the sum of all.
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
