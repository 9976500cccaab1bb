// Tests that the watchdog reports a batch once when it runs beyond its limit, and reports no other batch.

#include "engine/serving/batch_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/serving/admission/engine_observer.h"

namespace voxserve::batch_watchdog_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class StuckObserver final : public EngineObserver {
 public:
  void OnStuckBatch(std::string_view model, std::string_view device) override {
    if (throws) throw std::bad_alloc();
    absl::MutexLock lock(&mutex_);
    stuck_.emplace_back(model, device);
  }
  std::vector<std::pair<std::string, std::string>> stuck() {
    absl::MutexLock lock(&mutex_);
    return stuck_;
  }

  bool throws = false;

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<std::string, std::string>> stuck_;
};

// The fixture has a clock that the test moves, and a watchdog that looks once per second of this clock.
class BatchWatchdogTest : public testing::Test {
 protected:
  void Start(double factor, absl::Duration least_time) {
    watchdog_.emplace(BatchWatchdog::Options{.factor = factor,
                                             .least_time = least_time,
                                             .observer = &observer_,
                                             .on_stuck = [this] { ++num_calls_; },
                                             .now = [this] { return now_; },
                                             .has_thread = false});
  }

  BatchWatchdog::Batch BatchOf(absl::Duration predicted, std::string_view device = "cuda:0") const {
    return {.model = &model_, .device = device, .requests = 2, .points = 1000, .predicted = predicted};
  }

  void PassSeconds(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      watchdog_->Look();
    }
  }

  const ModelVersionInfo model_{.name = "net", .version = 7};
  StuckObserver observer_;
  int num_calls_ = 0;
  absl::Duration now_ = absl::Hours(5);
  std::optional<BatchWatchdog> watchdog_;
};

TEST_F(BatchWatchdogTest, ReportsABatchBeyondItsLimitOnce) {
  Start(50, absl::Seconds(30));
  testing::internal::CaptureStderr();
  {
    const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Milliseconds(20)));
    PassSeconds(30);
    EXPECT_THAT(observer_.stuck(), IsEmpty());
    PassSeconds(1);
    EXPECT_THAT(observer_.stuck(), ElementsAre(Pair("net", "cuda:0")));
    EXPECT_EQ(num_calls_, 1);
    PassSeconds(100);
    EXPECT_EQ(num_calls_, 1);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("ERROR a batch is stuck model=net version=7 device=cuda:0 requests=2 points=1000 "
                             "predicted_ms=20 elapsed_ms=31000\n"));
}

TEST_F(BatchWatchdogTest, ABatchIsStuckEvenIfThereIsNoMemoryToLogIt) {
  Start(50, absl::Seconds(30));
  observer_.throws = true;
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Milliseconds(20)));
  PassSeconds(31);
  EXPECT_EQ(num_calls_, 1);
}

TEST_F(BatchWatchdogTest, APredictionThatIsLongMovesTheLimit) {
  Start(50, absl::Seconds(30));
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Seconds(2)));
  PassSeconds(100);
  EXPECT_THAT(observer_.stuck(), IsEmpty());
  PassSeconds(1);
  EXPECT_EQ(num_calls_, 1);
}

TEST_F(BatchWatchdogTest, WithoutAFactorThePredictionDoesNotCount) {
  Start(0, absl::Seconds(8));
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Seconds(1000)));
  PassSeconds(9);
  EXPECT_EQ(num_calls_, 1);
}

TEST_F(BatchWatchdogTest, WithoutAPredictionTenTimesTheLeastTimeCount) {
  Start(50, absl::Seconds(8));
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::ZeroDuration()));
  PassSeconds(80);
  EXPECT_EQ(num_calls_, 0);
  PassSeconds(1);
  EXPECT_EQ(num_calls_, 1);
}

TEST_F(BatchWatchdogTest, BatchesThatEndInTimeAreNotStuck) {
  Start(50, absl::Seconds(8));
  for (int i = 0; i < 20; ++i) {
    const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Milliseconds(1)));
    PassSeconds(8);
  }
  PassSeconds(10);
  EXPECT_THAT(observer_.stuck(), IsEmpty());
}

TEST_F(BatchWatchdogTest, EachWorkersBatchHasItsOwnTime) {
  Start(10, absl::Seconds(8));
  std::optional<BatchWatchdog::Watch> first(std::in_place, &*watchdog_, BatchOf(absl::Milliseconds(1), "cuda:0"));
  PassSeconds(3);
  const BatchWatchdog::Watch second(&*watchdog_, BatchOf(absl::Milliseconds(1), "cuda:1"));
  const BatchWatchdog::Watch third(&*watchdog_, BatchOf(absl::Seconds(1), "cuda:2"));
  PassSeconds(5);
  first.reset();  // ends after 8 seconds
  PassSeconds(3);
  EXPECT_THAT(observer_.stuck(), IsEmpty());
  PassSeconds(1);
  EXPECT_THAT(observer_.stuck(), ElementsAre(Pair("net", "cuda:1")));
  PassSeconds(10);
  EXPECT_THAT(observer_.stuck(), ElementsAre(Pair("net", "cuda:1"), Pair("net", "cuda:2")));
}

TEST_F(BatchWatchdogTest, TimeInWhichTheProcessStoodStillDoesNotCount) {
  Start(50, absl::Seconds(30));
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Milliseconds(1)));
  for (int i = 0; i < 15; ++i) {
    now_ += absl::Hours(1);  // counts as two periods of the watchdog
    watchdog_->Look();
  }
  EXPECT_THAT(observer_.stuck(), IsEmpty());
  PassSeconds(1);
  EXPECT_EQ(num_calls_, 1);
}

TEST_F(BatchWatchdogTest, ABatchCountsFromItsOwnBegin) {
  Start(50, absl::Seconds(8));
  now_ += absl::Milliseconds(900);  // after the last look
  const BatchWatchdog::Watch watch(&*watchdog_, BatchOf(absl::Milliseconds(1)));
  now_ += absl::Milliseconds(100);
  watchdog_->Look();
  PassSeconds(7);
  now_ += absl::Milliseconds(900);  // 8 s after the batch began
  watchdog_->Look();
  EXPECT_THAT(observer_.stuck(), IsEmpty());
  now_ += absl::Milliseconds(1);
  watchdog_->Look();
  EXPECT_EQ(num_calls_, 1);
}

TEST(BatchWatchdogThreadTest, FindsTheBatchThatHangsAmongManyThatDoNot) {
  const ModelVersionInfo model{.name = "net", .version = 1};
  StuckObserver observer;
  absl::Notification found;
  std::atomic<int> num_calls{0};
  BatchWatchdog watchdog({.least_time = absl::Milliseconds(20), .observer = &observer, .on_stuck = [&] {
                            if (num_calls++ == 0) found.Notify();
                          }});
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      while (!stop) {
        const BatchWatchdog::Watch watch(&watchdog, {.model = &model, .device = "cpu"});
        std::this_thread::yield();
      }
    });
  }
  {
    const BatchWatchdog::Watch watch(&watchdog, {.model = &model, .device = "hangs"});
    EXPECT_TRUE(found.WaitForNotificationWithTimeout(absl::Minutes(1)));
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_THAT(observer.stuck(), testing::Contains(Pair("net", "hangs")));
}

TEST(BatchWatchdogThreadTest, EndsAtOnceWhateverItsPeriod) {
  const ModelVersionInfo model{.name = "net", .version = 1};
  int num_calls = 0;
  const absl::Time start = absl::Now();
  for (int i = 0; i < 100; ++i) {
    const BatchWatchdog watchdog({.least_time = absl::Hours(1), .on_stuck = [&] { ++num_calls; }});
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(50)) << "half of its periods";
  EXPECT_EQ(num_calls, 0);
}

TEST_F(BatchWatchdogTest, WithoutAWatchdogNobodyWatches) {
  Start(50, absl::Seconds(30));
  const BatchWatchdog::Watch watch(nullptr, BatchOf(absl::Milliseconds(20)));
  PassSeconds(100);
  EXPECT_THAT(observer_.stuck(), IsEmpty());
  EXPECT_EQ(num_calls_, 0);
}

}  // namespace
}  // namespace voxserve::batch_watchdog_test
