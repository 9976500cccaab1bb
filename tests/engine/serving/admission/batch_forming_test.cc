// Tests which tasks begin a batch and which tasks share it. Where predicted times matter, a batch takes 2 ms, and 4 ms
// more for each request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::batch_forming_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(BatchFormingTest, AWorkerTakesWhatIsThereAtOnce) {
  FakeBatcher fake({.num_workers = {2}});
  EXPECT_THAT(fake.Pop(), IsEmpty());
  ASSERT_TRUE(fake.Push(1).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  ASSERT_TRUE(fake.Push(2).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

// A stream's newest frame replaces an older one and keeps its place, or the stream would wait longer with each frame.
TEST(BatchFormingTest, AReplacementTakesThePlaceOfWhatItReplaces) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  const FakeBatcher::TaskOptions options{.timeout = absl::InfiniteDuration()};
  const absl::Time first = fake.clock.now();
  ASSERT_TRUE(fake.Push(1, options).ok());
  fake.clock.Advance(absl::Milliseconds(10));
  ASSERT_TRUE(fake.Push(2, options).ok());
  fake.clock.Advance(absl::Milliseconds(10));
  ASSERT_TRUE(fake->Cancel(1, DropReason::kSuperseded));
  QueuedTask replacement = fake.Task(3, options);
  replacement.task.waiting_since = first;
  ASSERT_TRUE(fake->Push(replacement).ok());
  EXPECT_THAT(fake.observer.dropped, ElementsAre("superseded"));
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, PointsAreTheBudget) {
  FakeBatcher fake({}, {.max_batch_points = 100});
  for (uint64_t ticket = 1; ticket <= 5; ++ticket) ASSERT_TRUE(fake.Push(ticket, {.points = 30}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 2, 3));
  EXPECT_THAT(fake.Pop(), ElementsAre(4, 5));
}

// A tensor that one task asks for is computed and copied for all samples of the batch. So only tasks that ask for the
// same tensors share a batch.
TEST(BatchFormingTest, TasksOfOtherTensorsDoNotShareABatch) {
  FakeBatcher fake;
  const auto push = [&](uint64_t ticket, TensorSet tensors, DType type = DType::kFloat32) {
    QueuedTask task = fake.Task(ticket);
    task.task.tensor_set = tensors;
    task.task.tensor_dtype = type;
    EXPECT_TRUE(fake->Push(task).ok());
  };
  push(1, 0);
  push(2, 0b01);
  push(3, 0, DType::kFloat16);  // it asks for no tensor, so the type does not matter
  push(4, 0b11);
  push(5, 0b01);
  push(6, 0b01, DType::kFloat16);
  push(7, 0);
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 3, 7));
  EXPECT_THAT(fake.Pop(), ElementsAre(2, 5));
  EXPECT_THAT(fake.Pop(), ElementsAre(4));
  EXPECT_THAT(fake.Pop(), ElementsAre(6));
  EXPECT_THAT(fake.Pop(), IsEmpty());
}

// A batch passes over tasks that ask for other tensors, but must end in time for these tasks to start.
TEST(BatchFormingTest, ABatchDoesNotGrowPastTheStartOfATaskOfOtherTensors) {
  FakeBatcher fake;
  fake.Teach();
  const auto push = [&](uint64_t ticket, TensorSet tensors, absl::Duration timeout) {
    QueuedTask task = fake.Task(ticket, {.timeout = timeout});
    task.task.tensor_set = tensors;
    EXPECT_TRUE(fake->Push(task).ok());
  };
  push(1, 1, absl::Milliseconds(15));  // a batch of three takes 14 ms, which is in time
  push(2, 0, absl::Milliseconds(19));  // must start within 13 ms: after a batch of two
  for (uint64_t ticket = 3; ticket <= 8; ++ticket) push(ticket, 1, absl::Milliseconds(900));
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 3));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

// A size that did not fit the memory is not tried again at once. The limit grows a little each time that the largest
// batch fits.
TEST(BatchFormingTest, MemoryIsABudgetThatIsLearnt) {
  FakeBatcher fake({.num_workers = {1}}, {.max_batch_points = 100});
  uint64_t ticket = 0;
  const auto batch_of = [&](int64_t points_each) {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(fake.Push(++ticket, {.points = points_each}).ok());
    Batch batch = fake->TryPop(0);
    while (!fake.Pop().empty()) {
    }
    return batch;
  };
  Batch batch = batch_of(10);
  EXPECT_EQ(batch.load.points, 80);
  fake->Finished(batch, {.had_room = false});
  batch = batch_of(10);
  EXPECT_EQ(batch.load.points, 40);
  fake->Finished(batch, {.num_voxels = 30});
  batch = batch_of(2);
  EXPECT_EQ(batch.load.points, 16);  // limited by the number of requests (8), not by points
  fake->Finished(batch, {.num_voxels = 10});
  batch = batch_of(5);
  EXPECT_EQ(batch.load.points, 40);
  batch = batch_of(60);
  EXPECT_EQ(batch.load.points, 60) << "a single request is not held to it";
}

TEST(BatchFormingTest, RequestsAreTheOtherBudget) {
  FakeBatcher fake({}, {.max_batch_requests = 2});
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 2));
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
}

TEST(BatchFormingTest, AKeysLimitOfSamplesHoldsWhateverTheConfigSays) {
  FakeBatcher fake({.max_queue_requests = 2000}, {.max_batch_requests = 5000});
  for (uint64_t ticket = 1; ticket <= 1500; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
  EXPECT_LE(fake.Pop().size(), static_cast<size_t>(kernels::kMaxSamples));
}

TEST(BatchFormingTest, ACloudBeyondTheBudgetRunsAlone) {
  FakeBatcher fake({}, {.max_batch_points = 100});
  ASSERT_TRUE(fake.Push(1, {.points = 500}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 0}).ok());
  ASSERT_TRUE(fake.Push(3, {.points = 100}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  EXPECT_THAT(fake.Pop(), ElementsAre(2, 3));
}

TEST(BatchFormingTest, VersionsDoNotMix) {
  FakeBatcher fake;
  const auto successor = FakeModel("m"), other = FakeModel("n");
  ASSERT_TRUE(fake.Push(1).ok());
  ASSERT_TRUE(fake.Push(2, {.model = successor}).ok());
  ASSERT_TRUE(fake.Push(3, {.model = other}).ok());
  ASSERT_TRUE(fake.Push(4).ok());
  ASSERT_TRUE(fake.Push(5, {.model = other}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 4));
  EXPECT_THAT(fake.Pop(), ElementsAre(3, 5)) << "the other model's turn";
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, TheEarliestLatestStartLeads) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(300)}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(100)}).ok());
  ASSERT_TRUE(fake.Push(3, {.timeout = absl::Milliseconds(200)}).ok());
  ASSERT_TRUE(fake.Push(4, {.timeout = absl::Milliseconds(100)}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
  EXPECT_THAT(fake.Pop(), ElementsAre(4));
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
}

TEST(BatchFormingTest, AModelThatTakesLongerMustStartEarlier) {
  FakeBatcher fake;
  const auto slow = FakeModel("slow");
  FakeBatcher::TeachModel(*slow, 20);  // 120 ms
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(200)}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(250), .model = slow}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, LevelsComeBeforeDeadlines) {
  FakeBatcher fake({}, {.max_batch_requests = 1, .priority_levels = 3});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(100), .priority = 2}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(300), .priority = 1}).ok());
  ASSERT_TRUE(fake.Push(3, {.timeout = absl::Milliseconds(900), .priority = 0}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
}

TEST(BatchFormingTest, LessUrgentTasksFillABatchUp) {
  FakeBatcher fake({}, {.priority_levels = 2});
  ASSERT_TRUE(fake.Push(1, {.priority = 1}).ok());
  ASSERT_TRUE(fake.Push(2, {.priority = 0}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(2, 1));
}

TEST(BatchFormingTest, ButNotWhileAnotherModelHasMoreUrgentOnes) {
  FakeBatcher fake({}, {.priority_levels = 2});
  const auto other = FakeModel("n", {.priority_levels = 2});
  ASSERT_TRUE(fake.Push(1, {.priority = 0}).ok());
  ASSERT_TRUE(fake.Push(2, {.priority = 1}).ok());
  ASSERT_TRUE(fake.Push(3, {.priority = 0, .model = other}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, NobodyStarves) {
  FakeBatcher fake({}, {.max_batch_requests = 1, .max_queue_delay = absl::Milliseconds(200), .priority_levels = 2});
  ASSERT_TRUE(fake.Push(1, {.priority = 1}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(60), .priority = 1}).ok());
  uint64_t ticket = 100;
  std::vector<uint64_t> ran;
  for (int i = 0; i < 30; ++i) {  // more urgent tasks come all the time
    fake.clock.Advance(absl::Milliseconds(10));
    ASSERT_TRUE(fake.Push(++ticket, {.priority = 0}).ok());
    ASSERT_TRUE(fake.Push(++ticket, {.priority = 0}).ok());
    for (const uint64_t popped : fake.Pop()) ran.push_back(popped);
  }
  // Task 2 moves to level 0 when it has waited for half of its 60 ms, and task 1 when it has waited for half of
  // max_queue_delay. Both then have an earlier latest start than any other task.
  EXPECT_EQ(std::count(ran.begin(), ran.end(), 1), 1);
  EXPECT_EQ(std::count(ran.begin(), ran.end(), 2), 1);
}

TEST(BatchFormingTest, OneThatDoesNotFitIsPassedOverWhereItCanWait) {
  FakeBatcher fake({}, {.max_batch_points = 100});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.points = 60}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 80}).ok());
  ASSERT_TRUE(fake.Push(3, {.points = 40}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 3));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, OneThatCannotWaitIsNotPassedOver) {
  FakeBatcher fake({.num_workers = {3}}, {.max_batch_points = 100});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.points = 60, .timeout = absl::Milliseconds(9)}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 80, .timeout = absl::Milliseconds(11)}).ok());
  ASSERT_TRUE(fake.Push(3, {.points = 40, .timeout = absl::Milliseconds(500)}).ok());
  // Task 2 must start within 5 ms, but even a batch of task 1 alone takes 6 ms. So no other task may join it.
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatchFormingTest, OneThatWasPassedOverBoundsTheBatch) {
  FakeBatcher fake({.num_workers = {5}}, {.max_batch_points = 100});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.points = 60, .timeout = absl::Milliseconds(15)}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 80, .timeout = absl::Milliseconds(18)}).ok());
  ASSERT_TRUE(fake.Push(3, {.points = 10, .timeout = absl::Milliseconds(500)}).ok());
  ASSERT_TRUE(fake.Push(4, {.points = 10, .timeout = absl::Milliseconds(500)}).ok());
  // Task 2 must start within 12 ms. A batch of two takes 10 ms, one of three would take 14 ms.
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 3));
}

TEST(BatchFormingTest, ABatchGrowsWhileItMakesTheDeadlinesInIt) {
  for (const auto& [timeout_ms, size] : std::vector<std::pair<int, size_t>>{{8, 1}, {12, 2}, {16, 3}, {500, 6}}) {
    FakeBatcher fake({.num_workers = {6}});
    fake.Teach();
    ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(timeout_ms)}).ok());
    for (uint64_t ticket = 2; ticket <= 6; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
    EXPECT_THAT(fake.Pop(), SizeIs(size)) << timeout_ms;
  }
}

TEST(BatchFormingTest, WhatRunsBesideCountsAsWell) {
  FakeBatcher fake({.num_workers = {2}});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  // Batches that run at the same time share the device. So a batch of two now takes 20 ms, and one of three takes 28
  // ms.
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(24)}).ok());
  for (uint64_t ticket = 3; ticket <= 6; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
  EXPECT_THAT(fake.Pop(), SizeIs(2));
}

TEST(BatchFormingTest, ALostDeadlineHoldsNobodyBack) {
  FakeBatcher fake;
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(3)}).ok());  // too late, but the idle worker takes it
  for (uint64_t ticket = 2; ticket <= 4; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1, 2, 3, 4));
}

TEST(BatchFormingTest, ExpiredTasksDoNotRideAlong) {
  FakeBatcher fake({}, {.priority_levels = 2});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(10), .priority = 1}).ok());
  ASSERT_TRUE(fake.Push(2).ok());
  fake.clock.Advance(absl::Milliseconds(10));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
  EXPECT_EQ(fake.answer(1).calls, 1);
  EXPECT_EQ(ReasonOf(fake.answer(1).status), error_reason::kDeadlineExpired);
}

TEST(BatchFormingTest, ManyTasksOfManyModels) {
  FakeBatcher fake({.max_queue_requests = 10'000}, {.priority_levels = 4});
  std::vector<std::shared_ptr<ServedModel>> models;
  for (int i = 0; i < 8; ++i) models.push_back(FakeModel(absl::StrCat("m", i), {.priority_levels = 4}));
  for (uint64_t ticket = 0; ticket < 4096; ++ticket) {
    ASSERT_TRUE(fake.Push(ticket, {.priority = static_cast<int>(ticket % 4), .model = models[ticket % 8]}).ok());
  }
  size_t num_ran = 0;
  int level = 0;
  while (num_ran < 4096) {
    const Batch batch = fake->TryPop(0);
    ASSERT_FALSE(batch.tasks.empty());
    EXPECT_GE(batch.tasks[0].task.priority, level);
    level = batch.tasks[0].task.priority;
    num_ran += batch.tasks.size();
    fake->Finished(batch, {std::nullopt});
  }
}

}  // namespace
}  // namespace voxserve::batch_forming_test
