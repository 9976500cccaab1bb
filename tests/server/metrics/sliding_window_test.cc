#include "server/metrics/sliding_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace voxserve::sliding_window_test {
namespace {

using testing::Each;
using testing::SizeIs;

// Counts the events in each second of the last minute, and those of the current second.
struct Seconds : SlidingWindow<int64_t, 61> {
  Seconds() : SlidingWindow(absl::Seconds(1)) {}
};

constexpr absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'000'000 + seconds); }

TEST(SlidingWindowTest, NothingIsZero) { EXPECT_THAT(Seconds().History(At(0)), testing::AllOf(SizeIs(60), Each(0))); }

TEST(SlidingWindowTest, CountsWholeSecondsOldestFirst) {
  Seconds rate;
  ++rate.At(At(0));
  ++rate.At(At(0) + absl::Milliseconds(900));
  ++rate.At(At(1));
  EXPECT_THAT(rate.History(At(0)), Each(0)) << "the second under way is left out";
  const std::vector<int64_t> history = rate.History(At(2));
  EXPECT_EQ(history[58], 2);
  EXPECT_EQ(history[59], 1);
  EXPECT_EQ(std::accumulate(history.begin(), history.end(), 0), 3);
}

TEST(SlidingWindowTest, ForgetsAfterAMinute) {
  Seconds rate;
  ++rate.At(At(0));
  EXPECT_EQ(rate.History(At(60))[0], 1);
  EXPECT_THAT(rate.History(At(61)), Each(0));
  ++rate.At(At(61));  // takes the slot of second 0
  EXPECT_EQ(rate.History(At(62))[59], 1);
  EXPECT_THAT(rate.History(At(1000)), Each(0));
}

TEST(SlidingWindowTest, VisitsTheSlotsOfTheWindow) {
  Seconds rate;
  const auto sum = [&rate](int64_t second) {
    int64_t events = 0;
    rate.ForEach(At(second), [&events](int64_t count) { events += count; });
    return events;
  };
  EXPECT_EQ(sum(0), 0);
  ++rate.At(At(0));
  ++rate.At(At(5));
  EXPECT_EQ(sum(4), 1) << "what is later than the window does not count";
  EXPECT_EQ(sum(5), 2) << "the second under way counts";
  EXPECT_EQ(sum(60), 2);
  EXPECT_EQ(sum(61), 1);
  EXPECT_EQ(sum(66), 0);
  EXPECT_EQ(rate.SlotBegin(At(5) + absl::Milliseconds(900)), At(5));
}

}  // namespace
}  // namespace voxserve::sliding_window_test
