#pragma once

// GroupingCache holds how the matrix products of a batch's rulebooks are grouped (kernels/conv/matmul_grouping.h). The
// host makes a grouping for the first convolution that asks for it. All convolutions with the same rulebook and options
// share it.
//
// An executor has one for the feature pass of a batch. Not thread-safe.

#include <deque>

#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

class GroupingCache {
 public:
  // Returns the grouping of rulebook number `rulebook`, which has the map sizes `sizes`. The reference stays valid as
  // long as the cache.
  const kernels::MatmulGrouping& Find(int rulebook, const kernels::MatmulGroupingParams& sizes,
                                      const kernels::GroupingOptions& options);

 private:
  struct Entry {
    int rulebook = 0;
    kernels::GroupingOptions options;
    kernels::MatmulGrouping grouping;
  };
  std::deque<Entry> entries_;  // a deque, since it does not move its elements when it grows
};

}  // namespace voxserve
