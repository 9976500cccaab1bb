#pragma once

// This header searches in ascending arrays. Every thread searches by itself. Only .cu files include it.

#include <cstdint>

namespace voxserve::kernels::cuda {

// Returns the first index in [0, count) for which is_before(index) is false, or count if there is none. is_before must
// be true for all smaller indices and false from there on.
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

// Returns the number of the run that a row is in. Run r has rows [begin[r], begin[r + 1]) and may be empty; num_runs is
// at least 1. A row before the first run counts as part of the first run, and a row after the last run as part of the
// last. begin: [num_runs + 1].
__device__ inline int32_t RunOf(const int64_t* begin, int32_t num_runs, int64_t row) {
  return PartitionPoint(num_runs - 1, [&](int32_t run) { return begin[run + 1] <= row; });
}

}  // namespace voxserve::kernels::cuda
