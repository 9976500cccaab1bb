#include "server/metrics/recent_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace voxserve::recent_rate_test {
namespace {

using testing::Each;
using testing::SizeIs;

constexpr absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'000'000 + seconds); }

TEST(RecentRateTest, NothingIsZero) { EXPECT_THAT(RecentRate().History(At(0)), testing::AllOf(SizeIs(60), Each(0))); }

TEST(RecentRateTest, CountsWholeSecondsOldestFirst) {
  RecentRate rate;
  rate.Add(At(0));
  rate.Add(At(0) + absl::Milliseconds(900));
  rate.Add(At(1));
  EXPECT_THAT(rate.History(At(0)), Each(0)) << "the second under way is left out";
  const std::vector<int64_t> history = rate.History(At(2));
  EXPECT_EQ(history[58], 2);
  EXPECT_EQ(history[59], 1);
  EXPECT_EQ(std::accumulate(history.begin(), history.end(), 0), 3);
}

TEST(RecentRateTest, ForgetsAfterAMinute) {
  RecentRate rate;
  rate.Add(At(0));
  EXPECT_EQ(rate.History(At(60))[0], 1);
  EXPECT_THAT(rate.History(At(61)), Each(0));
  rate.Add(At(61));  // takes the slot of second 0
  EXPECT_EQ(rate.History(At(62))[59], 1);
  EXPECT_THAT(rate.History(At(1000)), Each(0));
}

}  // namespace
}  // namespace voxserve::recent_rate_test
