// Tests GroupingCache: which convolutions share a grouping of their matrix products, and that GroupMatmuls
// (kernels/conv/matmul_grouping.h) computes it.

#include "engine/geometry/grouping_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace voxserve::grouping_cache_test {
namespace {

TEST(GroupingCacheTest, IsMadeOnceForARulebookAndItsOptions) {
  const std::vector<int64_t> offset_begin = {0, 10, 12, 30, 30, 45};
  const kernels::MatmulGroupingParams sizes{.num_offsets = 5, .offset_begin = offset_begin.data()};
  const kernels::GroupingOptions separate{.grouping = kernels::Grouping::kSeparate};
  const kernels::GroupingOptions fixed{.grouping = kernels::Grouping::kFixed};
  GroupingCache cache;
  const kernels::MatmulGrouping& first = cache.Find(3, sizes, separate);
  EXPECT_EQ(first.groups, kernels::GroupMatmuls(sizes, separate).groups);
  EXPECT_EQ(cache.Find(3, sizes, fixed).groups, kernels::GroupMatmuls(sizes, fixed).groups);
  EXPECT_NE(&cache.Find(4, sizes, separate), &first);
  for (int rulebook = 5; rulebook < 100; ++rulebook) cache.Find(rulebook, sizes, separate);
  EXPECT_EQ(&cache.Find(3, sizes, separate), &first) << "a grouping stays where it is";
}

}  // namespace
}  // namespace voxserve::grouping_cache_test
