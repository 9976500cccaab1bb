// Tests which scans PlanTuner keeps for a search while it waits for more. The models have no devices, so a search that
// begins ends at once with INTERNAL. plan_tuning_test.cc tests real searches.

#include "engine/serving/models/plan_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/runtime/pinned_pool.h"
#include "tests/engine/serving/admission/fake_model.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::plan_tuner_test {
namespace {

using testing::HasSubstr;

using Result = absl::StatusOr<TuneResult>;

// Returns a task with a cloud of this many points of 4 bytes.
InferTask Scan(int64_t num_points) {
  Answer unused;
  InferTask scan = FakeTask(0, FakeModel(), &unused, num_points).task;
  scan.done = nullptr;
  return scan;
}

class PlanTunerTest : public testing::Test {
 protected:
  PlanTuner& Start(PlanTuner::Options options = {}) {
    options.memory = &memory_;
    tuner_ = std::make_unique<PlanTuner>(options);
    return *tuner_;
  }
  std::future<Result> Tune(uint64_t ticket, const ModelHandle& model, int num_scans = 16,
                           absl::Duration max_wait = absl::InfiniteDuration()) {
    auto promise = std::make_shared<std::promise<Result>>();
    TuneTask task{.num_scans = num_scans, .max_wait = max_wait};
    // The memory of the scans must be free before anybody learns that the search has ended.
    task.done = [this, promise](Result result) {
      held_at_end_ = held();
      promise->set_value(std::move(result));
    };
    EXPECT_TRUE(tuner_->Start(ticket, model, "", task).ok());
    return promise->get_future();
  }
  int64_t held() const { return memory_.held(MemoryBudget::Use::kTuning); }
  // Returns the status of the search, or an error if the search does not end in time.
  static absl::Status StatusOf(std::future<Result>& end) {
    if (end.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return absl::UnknownError("no answer");
    return end.get().status();
  }

  MemoryBudget memory_;         // without a limit
  MemoryBudget limited_{1000};  // for tests that need a limit
  std::atomic<int64_t> held_at_end_{-1};
  const std::shared_ptr<ServedModel> model_ = FakeModel("m", {}, 0), other_ = FakeModel("n", {}, 0);
  std::unique_ptr<PlanTuner> tuner_;
};

TEST_F(PlanTunerTest, ASearchBeginsWithItsScansAndFreesThem) {
  PlanTuner& tuner = Start();
  EXPECT_FALSE(tuner.is_collecting());
  auto end = Tune(1, model_, 3);
  EXPECT_TRUE(tuner.is_collecting());
  tuner.Offer(*model_, Scan(10));
  tuner.Offer(*other_, Scan(10));
  tuner.Offer(*model_, Scan(0));
  tuner.Offer(*model_, Scan(10));
  EXPECT_EQ(held(), 80);
  tuner.Offer(*model_, Scan(10));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(held_at_end_, 0);
  EXPECT_FALSE(tuner.is_collecting());
}

TEST_F(PlanTunerTest, ASearchGoesOnWhereItsProgressCannotBeTold) {
  PlanTuner& tuner = Start();
  auto promise = std::make_shared<std::promise<Result>>();
  auto end = promise->get_future();
  TuneTask task{.num_scans = 1, .max_wait = absl::InfiniteDuration()};
  task.on_progress = [](const TuneProgress&) { throw std::bad_alloc(); };
  task.done = [promise](Result result) { promise->set_value(std::move(result)); };
  ASSERT_TRUE(tuner.Start(1, model_, "", task).ok());
  tuner.Offer(*model_, Scan(10));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal) << "it has begun";
}

TEST_F(PlanTunerTest, ScansBeyondTheBytesArePassedOverAndTheOthersStay) {
  PlanTuner& tuner = Start({.max_scan_bytes = 100});
  auto end = Tune(1, model_, 3);
  tuner.Offer(*model_, Scan(15));
  tuner.Offer(*model_, Scan(11));
  EXPECT_EQ(held(), 60);
  tuner.Offer(*model_, Scan(9));
  tuner.Offer(*model_, Scan(2));
  EXPECT_EQ(held(), 96);
  tuner.Offer(*model_, Scan(1));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal) << "three are kept";
  EXPECT_EQ(held_at_end_, 0);
}

// Clouds have 64 KiB; the pool has two buffers of that size.
TEST_F(PlanTunerTest, ScansThatAreKeptLeavePinnedMemoryToRequests) {
  constexpr int64_t kBytes = int64_t{64} << 10;
  support::FakePinnedMemory pinned_memory;
  const auto pool = PinnedPool::Create({.source = pinned_memory.Source()});
  support::MakeReady(*pool, kBytes, 2);
  const auto pinned_cloud = [&] {
    InferTask scan = Scan(kBytes / 4);
    HostBuffer buffer = *pool->Take(kBytes, BufferLife::kRequest);
    EXPECT_TRUE(buffer.is_pinned()) << "the scans before have given theirs back";
    buffer.Write(0, scan.cloud.bytes());
    buffer.FinishWrites();
    return *PointCloud::Create(scan.cloud.layout(), std::move(buffer));
  };
  PlanTuner& tuner = Start();
  auto end = Tune(1, model_, 6);
  for (int i = 0; i < 3; ++i) tuner.Offer(*model_, {.cloud = pinned_cloud()});
  EXPECT_EQ(held(), 3 * kBytes);
  for (int i = 0; i < 2; ++i) {
    InferTask scan;
    for (int sweep = 0; sweep < 2; ++sweep) {
      scan.sweeps.push_back({.sweep = std::make_shared<const Sweep>(Sweep{.cloud = pinned_cloud()})});
    }
    scan.cloud = scan.sweeps.front().sweep->cloud;
    tuner.Offer(*model_, scan);
  }
  EXPECT_EQ(held(), 7 * kBytes);
  tuner.Offer(*model_, {.cloud = pinned_cloud()});
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal) << "six are kept";
}

TEST_F(PlanTunerTest, AllSearchesTogetherHaveTheBytes) {
  PlanTuner& tuner = Start({.max_scan_bytes = 100});
  auto first = Tune(1, model_), second = Tune(2, other_);
  tuner.Offer(*model_, Scan(20));
  tuner.Offer(*other_, Scan(20));
  EXPECT_EQ(held(), 80) << "the second one did not fit";
  tuner.Cancel(1);
  tuner.Offer(*other_, Scan(25));
  EXPECT_EQ(held(), 100);
}

TEST_F(PlanTunerTest, AllSearchesTogetherHaveTheScans) {
  PlanTuner& tuner = Start({.max_scans = 3});
  auto first = Tune(1, model_), second = Tune(2, other_);
  for (int i = 0; i < 2; ++i) tuner.Offer(*model_, Scan(1));
  for (int i = 0; i < 2; ++i) tuner.Offer(*other_, Scan(100));
  EXPECT_EQ(held(), 2 * 4 + 400);
  tuner.Cancel(1);
  EXPECT_EQ(held(), 400);
  for (int i = 0; i < 3; ++i) tuner.Offer(*other_, Scan(100));
  EXPECT_EQ(held(), 3 * 400);
}

TEST_F(PlanTunerTest, AQuarterOfTheMemoryLimitAtMost) {
  tuner_ = std::make_unique<PlanTuner>(PlanTuner::Options{.memory = &limited_});
  auto end = Tune(1, model_);
  for (int i = 0; i < 10; ++i) tuner_->Offer(*model_, Scan(10));
  EXPECT_EQ(limited_.held(MemoryBudget::Use::kTuning), 240);
  tuner_->Cancel(1);
  EXPECT_EQ(limited_.held(), 0);
}

TEST_F(PlanTunerTest, WhatOthersHoldOfTheMemoryLeavesLess) {
  tuner_ = std::make_unique<PlanTuner>(PlanTuner::Options{.memory = &limited_});
  auto requests = limited_.Reserve(MemoryBudget::Use::kRequests, 450);
  ASSERT_TRUE(requests.ok());
  auto end = Tune(1, model_);
  for (int i = 0; i < 10; ++i) tuner_->Offer(*model_, Scan(10));
  EXPECT_EQ(limited_.held(MemoryBudget::Use::kTuning), 40) << "what waits has half of the limit";
  requests->Release();
  tuner_->Offer(*model_, Scan(10));
  EXPECT_EQ(limited_.held(MemoryBudget::Use::kTuning), 80);
}

TEST_F(PlanTunerTest, WithoutABudgetTheTunersOwnBoundsHold) {
  tuner_ = std::make_unique<PlanTuner>(PlanTuner::Options{.max_scan_bytes = 100});
  auto end = Tune(1, model_, 2, absl::Milliseconds(300));
  tuner_->Offer(*model_, Scan(20));
  tuner_->Offer(*model_, Scan(20));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal) << "it begins with one";
}

TEST_F(PlanTunerTest, WhenTheWaitEndsItBeginsWithWhatThereIs) {
  PlanTuner& tuner = Start();
  auto end = Tune(1, model_, 16, absl::Milliseconds(200));
  tuner.Offer(*model_, Scan(10));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(held_at_end_, 0);
}

TEST_F(PlanTunerTest, AScanIsKeptForABoundedTimeHoweverLongTheWait) {
  EXPECT_EQ(PlanTuner::Options().max_scan_age, absl::Minutes(10));
  PlanTuner& tuner = Start({.max_scan_age = absl::Milliseconds(50)});
  auto end = Tune(1, model_);  // waits without limit for the first scan
  tuner.Offer(*model_, Scan(10));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(held_at_end_, 0);
}

TEST_F(PlanTunerTest, ASearchThatHoldsAllTheRoomBeginsWithWhatItHas) {
  PlanTuner& tuner = Start({.max_scan_bytes = 100});
  auto end = Tune(1, model_, 4);
  for (int i = 0; i < 2 + 3; ++i) tuner.Offer(*model_, Scan(10));  // two scans fit into the memory
  EXPECT_EQ(held(), 80);
  tuner.Offer(*model_, Scan(5));
  EXPECT_EQ(held(), 100) << "one that fits came after three that did not: it still waits, and counts anew";
  for (int i = 0; i < 3; ++i) tuner.Offer(*model_, Scan(1));
  EXPECT_TRUE(tuner.is_collecting());
  EXPECT_EQ(held(), 100);
  tuner.Offer(*model_, Scan(1));
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kInternal) << "it begins with three of four";
  EXPECT_EQ(held_at_end_, 0);
}

TEST_F(PlanTunerTest, ASearchWithoutAScanWaitsForRoomThatAnotherHolds) {
  PlanTuner& tuner = Start({.max_scan_bytes = 100});
  auto first = Tune(1, model_), second = Tune(2, other_, 1);
  tuner.Offer(*model_, Scan(25));
  for (int i = 0; i < 10; ++i) tuner.Offer(*other_, Scan(10));
  EXPECT_EQ(held(), 100);
  EXPECT_TRUE(tuner.is_collecting());
  tuner.Cancel(1);
  tuner.Offer(*other_, Scan(10));
  EXPECT_EQ(StatusOf(second).code(), absl::StatusCode::kInternal);
}

TEST_F(PlanTunerTest, NoScanAndNoRoomAreToldApart) {
  PlanTuner& tuner = Start({.max_scan_bytes = 100});
  auto none = Tune(1, model_, 16, absl::Milliseconds(20));
  const absl::Status no_scan = StatusOf(none);
  EXPECT_EQ(no_scan.code(), absl::StatusCode::kDeadlineExceeded) << no_scan;
  auto large = Tune(2, model_, 16, absl::Milliseconds(200));
  tuner.Offer(*model_, Scan(26));
  tuner.Offer(*model_, Scan(1000));
  const absl::Status no_room = StatusOf(large);
  EXPECT_EQ(no_room.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(no_room), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(no_room.message()), HasSubstr("none of 2 scans for model \"m\""));
}

TEST_F(PlanTunerTest, CancelGivesTheMemoryBack) {
  PlanTuner& tuner = Start();
  auto end = Tune(1, model_);
  tuner.Offer(*model_, Scan(1000));
  EXPECT_EQ(held(), 4000);
  tuner.Cancel(7);
  EXPECT_EQ(held(), 4000);
  tuner.Cancel(1);
  EXPECT_EQ(held(), 0);
  tuner.Offer(*model_, Scan(1000));
  EXPECT_EQ(held(), 0) << "it takes no more";
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kCancelled);
}

TEST_F(PlanTunerTest, CancelGivesItBackWhileAnotherSearchRuns) {
  std::promise<void> may_end;
  PlanTuner& tuner = Start();
  TuneTask blocking{.num_scans = 1};
  blocking.done = [&](const Result&) { may_end.get_future().wait(); };  // like a search that runs for minutes
  ASSERT_TRUE(tuner.Start(1, model_, "", blocking).ok());
  tuner.Offer(*model_, Scan(10));
  auto end = Tune(2, other_);
  tuner.Offer(*other_, Scan(1000));
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  while (held() > 4000 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(held(), 4000) << "the first one has let go";
  tuner.Cancel(2);
  EXPECT_EQ(held(), 0);
  may_end.set_value();
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kCancelled);
}

TEST_F(PlanTunerTest, UnloadGivesTheMemoryBack) {
  PlanTuner& tuner = Start();
  auto end = Tune(1, model_), other = Tune(2, other_);
  tuner.Offer(*model_, Scan(1000));
  tuner.Offer(*other_, Scan(10));
  tuner.CancelAllOf(model_);
  EXPECT_EQ(held(), 40);
  EXPECT_EQ(StatusOf(end).code(), absl::StatusCode::kCancelled);
}

TEST_F(PlanTunerTest, ASearchThatMakesWayGivesTheMemoryBack) {
  PlanTuner& tuner = Start();
  TuneTask unasked{.max_wait = absl::InfiniteDuration()};  // like a search that the engine begins on its own
  ASSERT_TRUE(tuner.Start(1, model_, "", unasked).ok());
  tuner.Offer(*model_, Scan(1000));
  EXPECT_EQ(held(), 4000);
  auto end = Tune(2, model_);
  EXPECT_EQ(held(), 0);
}

TEST_F(PlanTunerTest, DrainGivesTheMemoryBack) {
  PlanTuner& tuner = Start();
  auto first = Tune(1, model_), second = Tune(2, other_);
  tuner.Offer(*model_, Scan(1000));
  tuner.Offer(*other_, Scan(1000));
  tuner.Stop();
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(StatusOf(first).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(StatusOf(second).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace voxserve::plan_tuner_test
