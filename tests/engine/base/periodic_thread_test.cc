#include "engine/base/periodic_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/base/steady_time.h"

namespace voxserve::periodic_thread_test {
namespace {

TEST(PeriodicThreadTest, CallsUntilItIsDestroyed) {
  std::atomic<int> num_calls{0};
  absl::Notification third;
  {
    const PeriodicThread thread(absl::ZeroDuration(), [&] {
      if (++num_calls == 3) third.Notify();
      return absl::Milliseconds(1);
    });
    EXPECT_TRUE(third.WaitForNotificationWithTimeout(absl::Seconds(10)));
  }
  const int calls_at_end = num_calls;
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(num_calls, calls_at_end);
}

TEST(PeriodicThreadTest, ThePauseComesBeforeTheFirstCallToo) {
  std::atomic<int> num_calls{0};
  const auto look = [&] {
    ++num_calls;
    return absl::ZeroDuration();
  };
  std::optional<PeriodicThread> thread(std::in_place, absl::Hours(1), look);
  thread.reset();  // does not wait for the pause
  EXPECT_EQ(num_calls, 0);
}

TEST(PeriodicThreadTest, ACallWithoutMemoryIsMadeAgain) {
  std::atomic<int> num_calls{0};
  absl::Notification fifth;
  absl::Time begin = SteadyNow();
  absl::Time end = begin;
  const PeriodicThread thread(absl::ZeroDuration(), [&] {
    const int call = ++num_calls;
    if (call == 2 || call == 3) throw std::bad_alloc();
    if (call == 5) {
      end = SteadyNow();
      fifth.Notify();
      return absl::InfiniteDuration();
    }
    return absl::ZeroDuration();
  });
  EXPECT_TRUE(fifth.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_GE(end - begin, 2 * PeriodicThread::kPauseWithoutMemory);
}

TEST(PeriodicThreadTest, TheFirstCallMayFindNoMemory) {
  std::atomic<int> num_calls{0};
  absl::Notification second;
  const PeriodicThread thread(absl::ZeroDuration(), [&] {
    if (++num_calls == 1) throw std::bad_alloc();
    second.Notify();
    return absl::InfiniteDuration();
  });
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST(PeriodicThreadTest, AnInfinitePauseIsTheEnd) {
  std::atomic<int> num_calls{0};
  absl::Notification called;
  const PeriodicThread thread(absl::ZeroDuration(), [&] {
    ++num_calls;
    called.Notify();  // a second call would end the program
    return absl::InfiniteDuration();
  });
  EXPECT_TRUE(called.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace voxserve::periodic_thread_test
