#pragma once

// GroupingCache holds the groupings of matrix products for a batch's rulebooks. A grouping says which kernel offsets of
// a convolution share a batched matrix product (kernels/conv/matmul_grouping.h). The host makes a grouping when the
// first convolution asks for it. All convolutions with the same rulebook and options share the grouping.
//
// An executor makes a new cache for each feature pass, since the sizes of kernel maps (an offset's pairs) change from
// batch to batch. Not thread-safe.

#include <deque>

#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

class GroupingCache {
 public:
  // Returns the grouping of rulebook number `rulebook`, whose kernel maps have the sizes `sizes`. The reference stays
  // valid as long as the cache.
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
