// Tests SteadyNow, which never goes back, and the waits with a limit of engine/base/steady_time.h.

#include "engine/base/steady_time.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "tests/support/await_true.h"

namespace voxserve::steady_time_test {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(20);
constexpr absl::Duration kLong = absl::Seconds(60);

TEST(SteadyNowTest, BeginsAtTheWallClockAndNeverGoesBack) {
  EXPECT_LT(absl::AbsDuration(SteadyNow() - absl::Now()), kLong);
  absl::Time before = SteadyNow();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = SteadyNow();
    ASSERT_GE(now, before);
    before = now;
  }
}

class SteadyCondVarTest : public testing::Test {
 protected:
  absl::Mutex mutex_;
  SteadyCondVar changed_;
};

TEST_F(SteadyCondVarTest, WaitsUntilTheTime) {
  const absl::Time end = SteadyNow() + kShort;
  absl::MutexLock lock(&mutex_);
  while (SteadyNow() < end) changed_.WaitUntil(&mutex_, end);
  mutex_.AssertHeld();
}

TEST_F(SteadyCondVarTest, ATimeThatIsOverIsNotWaitedFor) {
  absl::MutexLock lock(&mutex_);
  changed_.WaitUntil(&mutex_, SteadyNow() - kLong);
  changed_.WaitUntil(&mutex_, absl::InfinitePast());
  mutex_.AssertHeld();
}

// A thread that waits for a signal. The thread shares the object, so that a test which finds that it never wakes ends.
struct Waiter {
  absl::Mutex mutex;
  SteadyCondVar changed;
  bool waits ABSL_GUARDED_BY(mutex) = false;  // true once the thread is in `wait`, which alone lets go of the mutex
  bool is_set ABSL_GUARDED_BY(mutex) = false;
  SteadyNotification woke;
};

std::shared_ptr<Waiter> StartWaiter(void (*wait)(Waiter&)) {
  auto waiter = std::make_shared<Waiter>();
  std::thread([waiter, wait] {
    {
      absl::MutexLock lock(&waiter->mutex);
      waiter->waits = true;
      while (!waiter->is_set) wait(*waiter);
    }
    waiter->woke.Notify();
  }).detach();
  EXPECT_TRUE(support::AwaitTrue([&] {
    absl::MutexLock lock(&waiter->mutex);
    return waiter->waits;
  }));
  return waiter;
}

TEST_F(SteadyCondVarTest, ASignalWakesWhoWaitsForLong) {
  const auto waiter = StartWaiter([](Waiter& one) { one.changed.WaitUntil(&one.mutex, SteadyNow() + 10 * kLong); });
  {
    absl::MutexLock lock(&waiter->mutex);
    waiter->is_set = true;
    waiter->changed.Signal();
  }
  EXPECT_TRUE(waiter->woke.WaitFor(kLong));
}

TEST_F(SteadyCondVarTest, ASignalWakesWhoWaitsForEver) {
  const auto waiter = StartWaiter([](Waiter& one) { one.changed.Wait(&one.mutex); });
  {
    absl::MutexLock lock(&waiter->mutex);
    waiter->is_set = true;
    waiter->changed.SignalAll();
  }
  EXPECT_TRUE(waiter->woke.WaitFor(kLong));
}

TEST(SteadyNotificationTest, TellsWhetherItWasNotified) {
  SteadyNotification notification;
  EXPECT_FALSE(notification.WaitFor(kShort));
  EXPECT_FALSE(notification.WaitFor(absl::ZeroDuration()));
  std::thread notifier([&] { notification.Notify(); });
  EXPECT_TRUE(notification.WaitFor(kLong));
  EXPECT_TRUE(notification.WaitFor(absl::InfiniteDuration())) << "notified for good";
  notifier.join();
}

}  // namespace
}  // namespace voxserve::steady_time_test
