// Tests SteadyNow, which never goes back, and the waits with a limit of engine/base/steady_time.h.

#include "engine/base/steady_time.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"

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
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
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

TEST_F(SteadyCondVarTest, ASignalWakesWhoWaitsForLong) {
  std::thread setter([this] {
    absl::MutexLock lock(&mutex_);
    is_set_ = true;
    changed_.Signal();
  });
  {
    const absl::Time end = SteadyNow() + kLong;
    absl::MutexLock lock(&mutex_);
    while (!is_set_ && SteadyNow() < end) changed_.WaitUntil(&mutex_, end);
    EXPECT_TRUE(is_set_);
  }
  setter.join();
}

TEST_F(SteadyCondVarTest, ASignalWakesWhoWaitsForEver) {
  std::thread setter([this] {
    absl::MutexLock lock(&mutex_);
    is_set_ = true;
    changed_.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex_);
    while (!is_set_) changed_.Wait(&mutex_);
  }
  setter.join();
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
