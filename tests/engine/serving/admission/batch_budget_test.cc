// Tests that the batcher keeps the size of batches within the limits of voxels and of a device's memory, and that
// admission counts on this. Where predicted times matter, a batch takes 2 ms, and 4 ms more for each request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error_reason.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::batch_budget_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(BatchBudgetTest, VoxelsAreEstimatedFromPoints) {
  FakeBatcher fake({}, {.max_batch_points = 1000, .max_batch_voxels = 50});
  uint64_t ticket = 0;
  const auto batch_of = [&](int64_t points_each) {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(fake.Push(++ticket, {.points = points_each}).ok());
    const size_t size = fake.Pop().size();
    while (!fake.Pop().empty()) {
    }
    return size;
  };
  EXPECT_EQ(batch_of(20), 2u) << "one voxel a point, before anything is known";
  fake.model->on_device[0].latency->ObserveVoxels(1000, 500);
  EXPECT_EQ(batch_of(20), 5u);
  EXPECT_EQ(batch_of(60), 1u) << "a cloud of more runs alone";
  fake.model->on_device[0].latency->ObserveVoxels(100, 100);  // a small, dense cloud, so later estimates are high
  EXPECT_EQ(batch_of(20), 2u);
}

TEST(BatchBudgetTest, MixedSizesFillByVoxels) {
  FakeBatcher fake({}, {.max_batch_points = 1000, .max_batch_voxels = 50});
  fake.Teach();
  fake.model->on_device[0].latency->ObserveVoxels(1000, 500);
  ASSERT_TRUE(fake.Push(1, {.points = 60}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 80}).ok());
  ASSERT_TRUE(fake.Push(3, {.points = 30}).ok());
  ASSERT_TRUE(fake.Push(4, {.points = 10}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 3, 4));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchBudgetTest, AMemoryLimitShrinksBatchesOfItsDevice) {
  std::vector<int64_t> limits = {125'000, 1'000'000};
  FakeBatcher fake({.num_workers = {8, 8}, .max_batch_bytes = [&](size_t device) { return limits[device]; }});
  uint64_t ticket = 0;
  const auto batch_on = [&](size_t device) {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(fake.Push(++ticket, {.points = 300}).ok());
    const size_t size = fake.Pop(device).size();
    while (!fake.Pop(device).empty()) {
    }
    return size;
  };
  EXPECT_EQ(batch_on(0), 8u) << "nothing is known";
  for (const auto& on_device : fake.model->on_device) {
    on_device.memory->Observe(100, 70, {.points = 9000, .features = 700});
  }
  fake.model->on_device[0].latency->ObserveVoxels(100, 100);
  fake.model->on_device[1].latency->ObserveVoxels(100, 100);
  // A point takes 100 bytes, and predictions are multiplied by 1.25, so 1000 points fit into the 125,000 bytes of
  // device 0.
  EXPECT_EQ(batch_on(0), 3u);
  EXPECT_EQ(batch_on(1), 8u);
  limits[0] = 80'000;  // other users of the device took memory
  EXPECT_EQ(batch_on(0), 2u);
  limits[0] = 0;
  EXPECT_EQ(batch_on(0), 1u) << "a single request always may run";
}

TEST(BatchBudgetTest, BatchesAheadAreNoFullerThanVoxelsOrMemoryAllow) {
  for (const bool by_voxels : {true, false}) {
    FakeBatcher fake({.max_batch_bytes = [&](size_t) { return by_voxels ? MemoryModel::kNoLimit : 25; }},
                     {.max_batch_voxels = by_voxels ? 2 : 0});
    fake.Teach();
    const auto& memory = fake.model->on_device[0].memory;
    if (!by_voxels) memory->Observe(100, 100, {.points = 1000, .features = 0});  // 10 bytes a point
    ASSERT_TRUE(fake.Push(1).ok());
    const Batch running = fake->TryPop(0);
    for (uint64_t ticket = 2; ticket < 9; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
    // The running batch takes 6 ms. Six of the seven waiting tasks make three batches of two, of 10 ms each. The
    // seventh task and the new one make another batch of 10 ms. The sum is 46 ms.
    EXPECT_EQ(ReasonOf(fake.Push(20, {.timeout = absl::Milliseconds(44)})), error_reason::kDeadlineUnmeetable);
    EXPECT_TRUE(fake.Push(21, {.timeout = absl::Milliseconds(48)}).ok());
    EXPECT_THAT(fake.Pop(), SizeIs(2));
  }
}

TEST(BatchBudgetTest, ABatchThatRanInPartsTeachesItsVoxelsAndNoTime) {
  FakeBatcher fake({}, {.max_batch_voxels = 1000});
  fake.model->on_device[0].latency->Observe({.points = 1000, .voxels = 10, .requests = 1}, absl::Milliseconds(5));
  for (uint64_t ticket = 1; ticket <= 2; ++ticket) ASSERT_TRUE(fake.Push(ticket, {.points = 1000}).ok());
  const Batch batch = fake->TryPop(0);
  ASSERT_EQ(batch.tasks.size(), 2u);
  const absl::Duration expected =
      fake.model->on_device[0].latency->Expected({.points = 1000, .voxels = 10, .requests = 1});
  fake.clock.Advance(absl::Seconds(3));
  fake->Finished(batch, {.num_voxels = 1800, .in_parts = true});
  EXPECT_EQ(fake.model->on_device[0].latency->EstimateVoxels(1000), 900);
  EXPECT_EQ(fake.model->on_device[0].latency->Expected({.points = 1000, .voxels = 10, .requests = 1}), expected);
  EXPECT_THAT(fake.observer.predictions, SizeIs(0));
  EXPECT_EQ(fake.model->on_device[0].memory->MaxPoints(1, 1), MemoryModel::kNoLimit) << "memory was not what it lacked";
  for (uint64_t ticket = 3; ticket <= 4; ++ticket) ASSERT_TRUE(fake.Push(ticket, {.points = 1000}).ok());
  EXPECT_THAT(fake.Pop(), SizeIs(1));
}

TEST(BatchBudgetTest, WhoWouldExpireInTheQueueIsRefusedAtOnce) {
  FakeBatcher fake({}, {.max_batch_requests = 1, .max_queue_delay = absl::Milliseconds(10)});
  fake.Teach();
  const FakeBatcher::TaskOptions patient{.timeout = absl::Seconds(5)};
  ASSERT_TRUE(fake.Push(1, patient).ok());
  const Batch running = fake->TryPop(0);
  ASSERT_EQ(running.tasks.size(), 1u);
  ASSERT_TRUE(fake.Push(2, patient).ok());  // would start in 6 ms, after the running batch
  const absl::Status refused = fake.Push(3, patient);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDeadlineUnmeetable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("in the queue; the limit of model \"m\" is 10ms"));
  EXPECT_THAT(fake.observer.dropped, ElementsAre("unmeetable"));
  fake.clock.Advance(absl::Milliseconds(4));  // a further task now starts in 8 ms
  EXPECT_TRUE(fake.Push(4, patient).ok());
  fake->Finished(running, {std::nullopt});
}

TEST(BatchBudgetTest, ABatchOfSeveralIsNoLongerThanItMayBe) {
  FakeBatcher fake({.max_batch_time = absl::Milliseconds(12)});
  const auto size_of_batch = [&](uint64_t first) {
    for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(fake.Push(first + i, {.client = i % 2 == 0 ? "a" : "b"}).ok());
    const size_t size = fake.Pop().size();
    while (!fake.Pop().empty()) {
    }
    return size;
  };
  EXPECT_EQ(size_of_batch(1), 4u) << "nothing is known";
  fake.Teach();
  EXPECT_EQ(size_of_batch(11), 2u) << "two take 10 ms, three take 14 ms";
  fake.Teach(/*slowdown=*/10);
  EXPECT_EQ(size_of_batch(21), 1u) << "one that takes longer runs alone";
}

// A batch runs for 60 ms. What cannot be in time behind it is refused at once, and told when another try is in time.
TEST(BatchBudgetTest, WhoIsRefusedBehindALongBatchIsToldWhenToTryAgain) {
  FakeBatcher fake;
  fake.Teach(/*slowdown=*/10);
  ASSERT_TRUE(fake.Push(1).ok());
  ASSERT_THAT(fake.Pop(), ElementsAre(1));
  const FakeBatcher::TaskOptions hurried = {.timeout = absl::Milliseconds(100), .client = "other"};
  const absl::Status refused = fake.Push(2, hurried);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDeadlineUnmeetable);
  const absl::Duration delay = RetryDelayOf(refused);
  EXPECT_GT(delay, absl::ZeroDuration());
  EXPECT_LE(delay, absl::Milliseconds(60));
  fake.clock.AdvanceTo(fake.clock.now() + delay);
  EXPECT_TRUE(fake.Push(3, hurried).ok());
}

}  // namespace
}  // namespace voxserve::batch_budget_test
