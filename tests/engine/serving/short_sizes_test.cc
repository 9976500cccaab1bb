#include "engine/serving/short_sizes.h"

#include <gtest/gtest.h>

namespace voxserve::short_sizes_test {
namespace {

constexpr absl::Duration kLimit = absl::Milliseconds(500);
const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(ShortSizesTest, NothingIsShownBeforeItRan) {
  ShortSizes sizes(kLimit);
  EXPECT_FALSE(sizes.IsShown("m", 1, /*is_predicted=*/true, kStart));
  sizes.Observe("m", 1000, kLimit, kStart);
  EXPECT_TRUE(sizes.IsShown("m", 1000, /*is_predicted=*/false, kStart));
  EXPECT_TRUE(sizes.IsShown("m", 10, /*is_predicted=*/false, kStart));
  EXPECT_FALSE(sizes.IsShown("m", 1001, /*is_predicted=*/false, kStart));
  EXPECT_TRUE(sizes.IsShown("m", 4000, /*is_predicted=*/true, kStart));
  EXPECT_FALSE(sizes.IsShown("m", 4004, /*is_predicted=*/true, kStart));
  EXPECT_FALSE(sizes.IsShown("other", 10, /*is_predicted=*/true, kStart));
}

TEST(ShortSizesTest, WhatTakesLongerShowsNothingAndTakesNothingBack) {
  ShortSizes sizes(kLimit);
  sizes.Observe("m", 1000, absl::Milliseconds(20), kStart);
  sizes.Observe("m", 100'000, absl::Milliseconds(800), kStart);
  sizes.Observe("m", 900, absl::Milliseconds(700), kStart);  // a busy moment
  EXPECT_FALSE(sizes.IsShown("m", 100'000, /*is_predicted=*/true, kStart));
  EXPECT_TRUE(sizes.IsShown("m", 1000, /*is_predicted=*/false, kStart));
}

// A client shows that 500,000 dense points are short, and sends as many scattered ones.
TEST(ShortSizesTest, ASurpriseBlocksItsSizeForAMinuteWhateverRuns) {
  ShortSizes sizes(kLimit);
  sizes.Observe("m", 500'000, absl::Milliseconds(100), kStart);
  ASSERT_TRUE(sizes.IsShown("m", 500'000, /*is_predicted=*/true, kStart));
  sizes.Observe("m", 500'000, absl::Seconds(8), kStart);
  sizes.Observe("m", 500'000, absl::Milliseconds(100), kStart + absl::Seconds(1));
  sizes.Observe("m", 50'000, absl::Milliseconds(100), kStart + absl::Seconds(1));
  const absl::Time later = kStart + absl::Seconds(59);
  EXPECT_FALSE(sizes.IsShown("m", 500'000, /*is_predicted=*/true, later));
  EXPECT_FALSE(sizes.IsShown("m", 250'000, /*is_predicted=*/true, later));
  EXPECT_TRUE(sizes.IsShown("m", 200'000, /*is_predicted=*/true, later));
  sizes.Observe("m", 500'000, absl::Milliseconds(100), kStart + absl::Seconds(61));
  EXPECT_TRUE(sizes.IsShown("m", 500'000, /*is_predicted=*/true, kStart + absl::Seconds(61)));
}

}  // namespace
}  // namespace voxserve::short_sizes_test
