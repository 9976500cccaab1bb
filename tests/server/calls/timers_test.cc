#include "server/calls/timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/steady_time.h"
#include "tests/support/await_true.h"

namespace voxserve::timers_test {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

// While this lives, the thread of the timers is busy with one of them. Timers that are set and cleared meanwhile come
// before it as they are at the end, however long that takes.
class Gate {
 public:
  explicit Gate(Timers* timers) {
    timers->Set(absl::InfinitePast(), [state = state_] {
      state->closed.Notify();
      state->opened.WaitForNotification();
    });
    state_->closed.WaitForNotification();
  }
  ~Gate() { state_->opened.Notify(); }

 private:
  struct State {
    absl::Notification closed, opened;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(TimersTest, CallsInTheOrderOfTheTimes) {
  absl::Mutex mutex;
  std::vector<int> order;
  absl::Notification all;
  Timers timers;
  auto gate = std::make_unique<Gate>(&timers);
  const absl::Time now = SteadyNow();
  for (const int after_ms : {60, 20, 40}) {
    timers.Set(now + absl::Milliseconds(after_ms), [&, after_ms] {
      EXPECT_GE(SteadyNow(), now + absl::Milliseconds(after_ms));
      absl::MutexLock lock(&mutex);
      order.push_back(after_ms);
      if (order.size() == 3) all.Notify();
    });
  }
  gate.reset();
  ASSERT_TRUE(all.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(order, ElementsAre(20, 40, 60));
}

TEST(TimersTest, AClearedTimerIsNotCalledAndLetsGoOfWhatItHeld) {
  Timers timers;
  auto held = std::make_shared<int>();
  bool was_called = false;
  absl::Notification later;
  {
    const Gate gate(&timers);
    const Timers::Id id = timers.Set(SteadyNow(), [&, held] { was_called = true; });
    timers.Clear(id);
    EXPECT_EQ(held.use_count(), 1);
    timers.Clear(id);
    timers.Clear(0);
    timers.Clear(12345);
    timers.Set(SteadyNow(), [&] { later.Notify(); });
  }
  ASSERT_TRUE(later.WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(was_called);
}

// After a timer is cleared, the thread still sleeps until the time of this timer. It must wake for other timers all the
// same.
TEST(TimersTest, AfterAClearedTimerEarlierAndLaterOnesAreCalled) {
  Timers timers;
  absl::Time cleared_time;
  const auto sleep_for_a_cleared_timer = [&] {
    std::atomic<bool> was_called = false;
    cleared_time = SteadyNow() + absl::Milliseconds(80);
    const Timers::Id cleared = timers.Set(cleared_time, [&] { was_called = true; });
    const bool sleeps = support::AwaitTrue([&] { return was_called || timers.wakes() == cleared_time; });
    timers.Clear(cleared);
    // A function that was about to run has ended when the thread sleeps again.
    return sleeps && support::AwaitTrue([&] { return timers.wakes() > absl::InfinitePast(); }) && !was_called;
  };
  // On a busy machine a timer may be called before it is cleared.
  ASSERT_TRUE(support::AwaitTrue(sleep_for_a_cleared_timer));
  absl::Notification earlier, later, latest;
  timers.Set(cleared_time + absl::Milliseconds(80), [&] { later.Notify(); });
  timers.Set(cleared_time - absl::Milliseconds(40), [&] { earlier.Notify(); });
  ASSERT_TRUE(earlier.WaitForNotificationWithTimeout(kLong));
  timers.Clear(timers.Set(SteadyNow() + absl::Hours(1), [] {}));
  ASSERT_TRUE(later.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(support::AwaitTrue([&] { return timers.wakes() == absl::InfiniteFuture(); }));
  timers.Set(SteadyNow() + absl::Milliseconds(10), [&] { latest.Notify(); });
  ASSERT_TRUE(latest.WaitForNotificationWithTimeout(kLong));
}

TEST(TimersTest, AFunctionMaySetAndClearTimers) {
  Timers timers;
  absl::Notification done;
  std::atomic<Timers::Id> id = 0;
  id = timers.Set(SteadyNow(), [&] {
    timers.Clear(id);
    timers.Set(SteadyNow() - absl::Seconds(1), [&] { done.Notify(); });
  });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kLong));
}

TEST(TimersTest, EndsWithoutCallingWhatIsNotDue) {
  bool was_called = false;
  {
    Timers timers;
    timers.Set(SteadyNow() + kLong, [&] { was_called = true; });
    timers.Set(absl::InfiniteFuture(), [&] { was_called = true; });
  }
  EXPECT_FALSE(was_called);
}

}  // namespace
}  // namespace voxserve::timers_test
