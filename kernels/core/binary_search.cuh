#pragma once

// Searches in ascending arrays, by a thread of its own each. Included by .cu files alone.

#include <cstdint>

namespace voxserve::kernels::cuda {

// The first index of [0, count) that is_before is false for, which it is from there on; count where there is none.
template <typename Index, typename Predicate>
__device__ Index PartitionPoint(Index count, const Predicate& is_before) {
  Index low = 0;
  while (low < count) {
    const Index middle = (low + count) / 2;
    if (is_before(middle)) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

// Which of num_runs runs, at least one, a row is in: run r has rows [begin[r], begin[r + 1]) and may have none. What
// lies outside all of them is in the nearest. begin: [num_runs + 1].
__device__ inline int32_t RunOf(const int64_t* begin, int32_t num_runs, int64_t row) {
  return PartitionPoint(num_runs - 1, [&](int32_t run) { return begin[run + 1] <= row; });
}

}  // namespace voxserve::kernels::cuda
