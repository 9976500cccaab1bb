#include "engine/base/periodic_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

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
