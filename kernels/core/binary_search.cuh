#pragma once

// Searches in ascending arrays; every thread searches by itself. Only .cu files include this header.

#include <cstdint>

namespace voxserve::kernels::cuda {

// Returns the first index of [0, count) for which is_before is false, or count if there is none. is_before must be true
// for all smaller indices and false from there on.
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

// Returns the run that a row is in. Run r has rows [begin[r], begin[r + 1]) and may be empty; num_runs is at least 1. A
// row before the first run or behind the last counts as part of that run. begin: [num_runs + 1].
__device__ inline int32_t RunOf(const int64_t* begin, int32_t num_runs, int64_t row) {
  return PartitionPoint(num_runs - 1, [&](int32_t run) { return begin[run + 1] <= row; });
}

}  // namespace voxserve::kernels::cuda
