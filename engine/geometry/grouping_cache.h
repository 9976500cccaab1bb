#pragma once

// How the matrix products of a batch's rulebooks are grouped (kernels/conv/matmul_grouping.h). A grouping is made on
// the host, for the convolution that asks for it first, and shared by all that read the same rulebook by the same
// options.
//
// An executor has one for the feature pass of a batch. Not thread-safe.

#include <deque>

#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

class GroupingCache {
 public:
  // The grouping of rulebook number `rulebook`, whose map sizes are `sizes`. It stays valid as long as the cache.
  const kernels::MatmulGrouping& Find(int rulebook, const kernels::MatmulGroupingParams& sizes,
                                      const kernels::GroupingOptions& options);

 private:
  struct Entry {
    int rulebook = 0;
    kernels::GroupingOptions options;
    kernels::MatmulGrouping grouping;
  };
  std::deque<Entry> entries_;  // which moves none of them
};

}  // namespace voxserve
