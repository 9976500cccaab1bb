#include "server/calls/timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace voxserve::timers_test {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(TimersTest, CallsInTheOrderOfTheTimes) {
  absl::Mutex mutex;
  std::vector<int> order;
  absl::Notification all;
  Timers timers;
  const absl::Time now = absl::Now();
  for (const int after_ms : {60, 20, 40}) {
    timers.Set(now + absl::Milliseconds(after_ms), [&, after_ms] {
      EXPECT_GE(absl::Now(), now + absl::Milliseconds(after_ms));
      absl::MutexLock lock(&mutex);
      order.push_back(after_ms);
      if (order.size() == 3) all.Notify();
    });
  }
  ASSERT_TRUE(all.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(order, ElementsAre(20, 40, 60));
}

TEST(TimersTest, AClearedTimerIsNotCalledAndLetsGoOfWhatItHeld) {
  Timers timers;
  auto held = std::make_shared<int>();
  bool was_called = false;
  const Timers::Id id = timers.Set(absl::Now() + absl::Milliseconds(20), [&, held] { was_called = true; });
  timers.Clear(id);
  EXPECT_EQ(held.use_count(), 1);
  timers.Clear(id);
  timers.Clear(0);
  timers.Clear(12345);
  absl::Notification later;
  timers.Set(absl::Now() + absl::Milliseconds(60), [&] { later.Notify(); });
  ASSERT_TRUE(later.WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(was_called);
}

// After a timer is cleared, the thread still sleeps until the time of this timer. It must wake for other timers all the
// same.
TEST(TimersTest, AfterAClearedTimerEarlierAndLaterOnesAreCalled) {
  Timers timers;
  const absl::Time now = absl::Now();
  absl::Notification earlier, later, latest;
  const Timers::Id cleared = timers.Set(now + absl::Milliseconds(80), [] { ADD_FAILURE() << "it was cleared"; });
  absl::SleepFor(absl::Milliseconds(20));  // the thread now sleeps until the time of `cleared`
  timers.Clear(cleared);
  timers.Set(now + absl::Milliseconds(160), [&] { later.Notify(); });
  timers.Set(now + absl::Milliseconds(40), [&] { earlier.Notify(); });
  ASSERT_TRUE(earlier.WaitForNotificationWithTimeout(kLong));
  timers.Clear(timers.Set(now + absl::Hours(1), [] {}));
  ASSERT_TRUE(later.WaitForNotificationWithTimeout(kLong));
  absl::SleepFor(absl::Milliseconds(20));  // the thread now sleeps without a time limit
  timers.Set(absl::Now() + absl::Milliseconds(10), [&] { latest.Notify(); });
  ASSERT_TRUE(latest.WaitForNotificationWithTimeout(kLong));
}

TEST(TimersTest, AFunctionMaySetAndClearTimers) {
  Timers timers;
  absl::Notification done;
  std::atomic<Timers::Id> id = 0;
  id = timers.Set(absl::Now(), [&] {
    timers.Clear(id);
    timers.Set(absl::Now() - absl::Seconds(1), [&] { done.Notify(); });
  });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kLong));
}

TEST(TimersTest, EndsWithoutCallingWhatIsNotDue) {
  bool was_called = false;
  {
    Timers timers;
    timers.Set(absl::Now() + kLong, [&] { was_called = true; });
    timers.Set(absl::InfiniteFuture(), [&] { was_called = true; });
  }
  EXPECT_FALSE(was_called);
}

}  // namespace
}  // namespace voxserve::timers_test
