#include "engine/geometry/grouping_cache.h"

namespace voxserve {

const kernels::MatmulGrouping& GroupingCache::Find(int rulebook, const kernels::MatmulGroupingParams& sizes,
                                                   const kernels::GroupingOptions& options) {
  for (const Entry& entry : entries_) {
    if (entry.rulebook == rulebook && entry.options == options) return entry.grouping;
  }
  entries_.push_back({.rulebook = rulebook, .options = options, .grouping = kernels::GroupMatmuls(sizes, options)});
  return entries_.back().grouping;
}

}  // namespace voxserve
