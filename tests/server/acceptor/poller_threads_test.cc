#include "server/acceptor/poller_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/support/await_true.h"

namespace voxserve::poller_threads_test {
namespace {

constexpr char kName[] = "poller_test";

// A thread with the name kName that computes, or sleeps, until the object's end.
class Thread {
 public:
  explicit Thread(bool sleeps)
      : thread_([this, sleeps] {
          pthread_setname_np(pthread_self(), kName);
          named_.Notify();
          if (sleeps) end_.WaitForNotification();
          while (!end_.HasBeenNotified()) {
          }
        }) {
    named_.WaitForNotification();
  }
  ~Thread() {
    end_.Notify();
    thread_.join();
  }

 private:
  absl::Notification named_;
  absl::Notification end_;
  std::thread thread_;
};

// Returns the share in the next 300 ms.
double Share(PollerThreads& threads) {
  threads.UseSinceLastCall();
  absl::SleepFor(absl::Milliseconds(300));
  return threads.UseSinceLastCall().busy_share;
}

TEST(PollerThreadsTest, WithoutThreadsNoneIsBusy) {
  PollerThreads threads({"no_such_thread"});
  EXPECT_EQ(threads.UseSinceLastCall().busy_share, 0);
  EXPECT_EQ(threads.UseSinceLastCall().busy_share, 0);
}

TEST(PollerThreadsTest, ThreadsThatComputeAreBusyAlsoOnABusyMachine) {
  Thread one(/*sleeps=*/false);
  Thread other(/*sleeps=*/false);
  PollerThreads threads({kName});
  EXPECT_EQ(threads.UseSinceLastCall().busy_share, 0) << "nothing is known before the first call";
  // The system adds the time that a thread waits for a processor when it gets one, so a single share may be too small.
  double most = 0;
  for (int i = 0; i < 30 && most < 0.8; ++i) most = std::max(most, Share(threads));
  EXPECT_GT(most, 0.8);
}

// A thread that computes may hold up connections of others, although another thread sleeps.
TEST(PollerThreadsTest, TheBusiestCounts) {
  Thread one(/*sleeps=*/false);
  Thread other(/*sleeps=*/true);
  PollerThreads threads({"no_such_thread", kName});
  double most = 0;
  for (int i = 0; i < 30 && most < 0.8; ++i) most = std::max(most, Share(threads));
  EXPECT_GT(most, 0.8);
}

TEST(PollerThreadsTest, AThreadThatIsNewHasDoneNothingYet) {
  PollerThreads threads({kName});
  threads.UseSinceLastCall();
  Thread one(/*sleeps=*/false);
  absl::SleepFor(absl::Milliseconds(50));
  const PollerThreads::Use use = threads.UseSinceLastCall();
  EXPECT_EQ(use.busy_share, 0);
  EXPECT_EQ(use.cpu_seconds, 0);
}

TEST(PollerThreadsTest, ThreadsThatSleepAreNotBusy) {
  Thread one(/*sleeps=*/true);
  Thread other(/*sleeps=*/true);
  PollerThreads threads({kName});
  EXPECT_LT(Share(threads), 0.2);
}

TEST(PollerThreadsTest, CountsTheTimeThatThreadsRan) {
  Thread one(/*sleeps=*/false);
  PollerThreads threads({kName});
  EXPECT_EQ(threads.UseSinceLastCall().cpu_seconds, 0);
  double seconds = 0;
  EXPECT_TRUE(support::AwaitTrue([&] {
    const double more = threads.UseSinceLastCall().cpu_seconds;
    EXPECT_GE(more, 0);
    return (seconds += more) > 0.2;
  }));
}

TEST(PollerThreadsTest, ThreadsThatHaveEndedAreForgotten) {
  PollerThreads threads({kName});
  {
    Thread one(/*sleeps=*/true);
    EXPECT_LT(Share(threads), 0.2);
  }
  EXPECT_EQ(threads.UseSinceLastCall().busy_share, 0);
  Thread next(/*sleeps=*/false);
  double most = 0;
  for (int i = 0; i < 30 && most < 0.8; ++i) most = std::max(most, Share(threads));
  EXPECT_GT(most, 0.8);
}

}  // namespace
}  // namespace voxserve::poller_threads_test
