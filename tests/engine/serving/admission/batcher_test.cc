// Tests how the batcher admits, refuses, expires and answers tasks. batch_forming_test.cc tests which tasks share a
// batch.

#include "engine/serving/admission/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::batcher_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(BatcherTest, FullQueueIsRefusedWithAReasonAndADelay) {
  FakeBatcher fake({.max_queue_requests = 1});
  ASSERT_TRUE(fake.Push(1).ok());
  QueuedTask task = fake.Task(2);
  const absl::Status refused = fake->Push(task);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), error_reason::kQueueFull);
  EXPECT_LT(RetryDelayOf(refused), absl::Seconds(10));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 requests waiting, limit 1"));
  EXPECT_EQ(fake.answer(2).calls, 0);  // the caller still owns the task
  EXPECT_TRUE(task.task.done != nullptr);
  EXPECT_THAT(fake.observer.dropped, ElementsAre("queue_full"));
}

TEST(BatcherTest, AModelsOwnLimitComesFirst) {
  FakeBatcher fake({.max_queue_requests = 100}, {.max_queue_requests = 2});
  EXPECT_TRUE(fake.Push(1).ok());
  EXPECT_TRUE(fake.Push(2).ok());
  EXPECT_EQ(ReasonOf(fake.Push(3)), error_reason::kQueueFull);
}

TEST(BatcherTest, BytesAreBoundedButOneLargeCloudAlwaysFits) {
  FakeBatcher fake({.max_queue_bytes = 100});
  EXPECT_TRUE(fake.Push(1, {.points = 1000}).ok());
  const absl::Status refused = fake.Push(2, {.points = 1});
  EXPECT_EQ(ReasonOf(refused), error_reason::kQueueFull);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("4000 bytes waiting, limit 100"));
}

TEST(BatcherTest, LimitsCountPerModelAndRoomComesBack) {
  FakeBatcher fake({.max_queue_requests = 1});
  const auto other = FakeModel("n");
  EXPECT_TRUE(fake.Push(1).ok());
  EXPECT_TRUE(fake.Push(2, {.model = other}).ok());
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  EXPECT_TRUE(fake.Push(3).ok());
  EXPECT_EQ(ReasonOf(fake.Push(4, {.model = other})), error_reason::kQueueFull);
}

TEST(BatcherTest, VersionsOfAModelShareItsLimit) {
  FakeBatcher fake({.max_queue_requests = 2});
  const auto successor = FakeModel("m");
  EXPECT_TRUE(fake.Push(1).ok());
  EXPECT_TRUE(fake.Push(2, {.model = successor}).ok());
  EXPECT_EQ(ReasonOf(fake.Push(3)), error_reason::kQueueFull);
  EXPECT_EQ(fake.observer.depth["m"], 2);
}

TEST(BatcherTest, AMoreUrgentTaskTakesThePlaceOfTheNewestLeastUrgentOne) {
  FakeBatcher fake({.max_queue_requests = 3}, {.priority_levels = 3});
  ASSERT_TRUE(fake.Push(1, {.priority = 2}).ok());
  ASSERT_TRUE(fake.Push(2, {.priority = 2}).ok());
  ASSERT_TRUE(fake.Push(3, {.priority = 1}).ok());
  EXPECT_EQ(ReasonOf(fake.Push(4, {.priority = 2})), error_reason::kQueueFull);
  ASSERT_TRUE(fake.Push(5, {.priority = 1}).ok());
  EXPECT_EQ(fake.answer(1).calls, 0);
  EXPECT_EQ(fake.answer(2).calls, 1);
  EXPECT_EQ(ReasonOf(fake.answer(2).status), error_reason::kQueueFull);
  EXPECT_LT(RetryDelayOf(fake.answer(2).status), absl::Seconds(10));
  ASSERT_TRUE(fake.Push(6, {.priority = 0}).ok());
  EXPECT_EQ(fake.answer(1).calls, 1);
  ASSERT_TRUE(fake.Push(7, {.priority = 0}).ok());
  EXPECT_EQ(fake.answer(5).calls, 1);
  ASSERT_TRUE(fake.Push(8, {.priority = 0}).ok());
  EXPECT_EQ(fake.answer(3).calls, 1);
  EXPECT_EQ(ReasonOf(fake.Push(9, {.priority = 0})), error_reason::kQueueFull);  // no waiting task is less urgent
  EXPECT_THAT(fake.Pop(), ElementsAre(6, 7, 8));
}

TEST(BatcherTest, NobodyIsEvictedInVain) {
  FakeBatcher fake({.max_queue_bytes = 1000}, {.priority_levels = 2});
  ASSERT_TRUE(fake.Push(1, {.points = 200, .priority = 0}).ok());
  ASSERT_TRUE(fake.Push(2, {.points = 50, .priority = 1}).ok());
  EXPECT_EQ(ReasonOf(fake.Push(3, {.points = 100, .priority = 0})), error_reason::kQueueFull);
  EXPECT_EQ(fake.answer(2).calls, 0);
  EXPECT_TRUE(fake.Push(4, {.points = 20, .priority = 0}).ok());
  EXPECT_EQ(ReasonOf(fake.answer(2).status), error_reason::kQueueFull);
}

TEST(BatcherTest, NoTaskIsLostWhereReportsFindNoMemory) {
  FakeBatcher fake({.max_queue_requests = 3}, {.priority_levels = 2});
  fake.observer.has_memory = false;
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(10), .priority = 1}).ok());
  ASSERT_TRUE(fake.Push(2, {.priority = 1}).ok());
  ASSERT_TRUE(fake.Push(3, {.priority = 1}).ok());
  ASSERT_TRUE(fake.Push(4, {.priority = 0}).ok());  // takes the place of 3
  EXPECT_EQ(ReasonOf(fake.answer(3).status), error_reason::kQueueFull);
  fake.clock.Advance(absl::Milliseconds(11));
  fake->ExpireDue();
  EXPECT_EQ(ReasonOf(fake.answer(1).status), error_reason::kDeadlineExpired);
  EXPECT_THAT(fake.Pop(), ElementsAre(4, 2));
  ASSERT_TRUE(fake.Push(5).ok());
  EXPECT_TRUE(fake->Cancel(5));
  EXPECT_EQ(fake.answer(5).calls, 1);
}

TEST(BatcherTest, TasksStillWaitWhereABatchFindsNoMemory) {
  bool has_memory = true;
  FakeBatcher fake({.max_batch_bytes = [&has_memory](size_t) {
    return has_memory ? std::numeric_limits<int64_t>::max() : throw std::bad_alloc();
  }});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(10)}).ok());
  ASSERT_TRUE(fake.Push(2).ok());
  has_memory = false;
  QueuedTask refused = fake.Task(3);
  EXPECT_EQ(ReasonOf(fake->Push(refused)), error_reason::kOutOfMemory);
  EXPECT_TRUE(refused.task.done != nullptr);  // the caller still owns the task
  fake.clock.Advance(absl::Milliseconds(11));
  EXPECT_THAT(fake.Pop(), IsEmpty());
  EXPECT_EQ(ReasonOf(fake.answer(1).status), error_reason::kDeadlineExpired);  // found before the allocation failed
  EXPECT_EQ(fake.answer(2).calls, 0);
  has_memory = true;
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatcherTest, PrioritiesBeyondTheModelsLevelsAreRefused) {
  FakeBatcher fake({}, {.priority_levels = 2});
  EXPECT_TRUE(fake.Push(1, {.priority = 1}).ok());
  for (const int priority : {-1, 2, 1000}) {
    const absl::Status refused = fake.Push(2, {.priority = priority});
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(refused), error_reason::kBadPriority);
  }
  EXPECT_THAT(fake.observer.dropped, IsEmpty());
}

TEST(BatcherTest, CancelledTaskLeavesTheQueueAndIsAnsweredOnce) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  ASSERT_TRUE(fake.Push(1).ok());
  ASSERT_TRUE(fake.Push(2).ok());
  EXPECT_TRUE(fake->Cancel(1));
  EXPECT_FALSE(fake->Cancel(1));
  EXPECT_FALSE(fake->Cancel(77));
  EXPECT_EQ(fake.answer(1).calls, 1);
  EXPECT_EQ(fake.answer(1).status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
  EXPECT_FALSE(fake->Cancel(2));  // it runs
  EXPECT_EQ(fake.answer(2).calls, 0);
  EXPECT_EQ(fake.observer.depth["m"], 0);
}

TEST(BatcherTest, ADeadlineThatHasPassedIsRefused) {
  FakeBatcher fake;
  const absl::Status refused = fake.Push(1, {.timeout = absl::ZeroDuration()});
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDeadlineExpired);
  EXPECT_THAT(fake.observer.dropped, ElementsAre("expired"));
}

TEST(BatcherTest, TasksExpireAtTheirDeadlineExactly) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(60)}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(20)}).ok());
  EXPECT_EQ(fake->NextExpiry(), fake.clock.now() + absl::Milliseconds(20));
  fake.clock.Advance(absl::Milliseconds(20) - absl::Nanoseconds(1));
  fake->ExpireDue();
  EXPECT_EQ(fake.answer(2).calls, 0);
  fake.clock.Advance(absl::Nanoseconds(1));
  fake->ExpireDue();
  EXPECT_EQ(fake.answer(2).calls, 1);
  EXPECT_EQ(fake.answer(2).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(fake.answer(2).status), error_reason::kDeadlineExpired);
  EXPECT_EQ(fake.answer(2).status.message(), "the deadline passed after 20ms in the queue");
  EXPECT_EQ(fake.answer(1).calls, 0);
  EXPECT_EQ(fake->NextExpiry(), fake.clock.now() + absl::Milliseconds(40));
  EXPECT_TRUE(fake->Cancel(1));
  EXPECT_EQ(fake->NextExpiry(), absl::InfiniteFuture());
  EXPECT_THAT(fake.observer.dropped, ElementsAre("expired", "cancelled"));
}

// The caller's deadline may pass up to 20 ms before the task's (kDeadlineTransit), so the caller's cancellation may
// come before the task expires.
TEST(BatcherTest, ATaskThatIsCancelledAtItsDeadlineExpires) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(100)}).ok());
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(100)}).ok());
  fake.clock.Advance(absl::Milliseconds(79));
  EXPECT_TRUE(fake->Cancel(1));
  EXPECT_EQ(fake.answer(1).status.code(), absl::StatusCode::kCancelled);
  fake.clock.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(fake->Cancel(2));
  EXPECT_EQ(fake.answer(2).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(fake.observer.dropped, ElementsAre("cancelled", "expired"));
}

TEST(BatcherTest, TasksExpireWhenTheyHaveWaitedForAsLongAsTheModelAllows) {
  FakeBatcher fake({}, {.max_queue_delay = absl::Milliseconds(40)});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Seconds(5)}).ok());
  EXPECT_EQ(fake->NextExpiry(), fake.clock.now() + absl::Milliseconds(40));
  fake.clock.Advance(absl::Milliseconds(40));
  EXPECT_THAT(fake.Pop(), IsEmpty());  // Pop must not hand out a task that ExpireDue would answer
  EXPECT_EQ(ReasonOf(fake.answer(1).status), error_reason::kDeadlineExpired);
  EXPECT_THAT(std::string(fake.answer(1).status.message()), HasSubstr("waited 40ms in the queue, the limit"));
}

TEST(BatcherTest, TasksWithoutADeadlineGetTheModelsOwn) {
  FakeBatcher fake({}, {.max_queue_delay = absl::Minutes(10), .default_timeout = absl::Seconds(7)});
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::InfiniteDuration()}).ok());
  EXPECT_EQ(fake->NextExpiry(), fake.clock.now() + absl::Seconds(7));
  const Batch batch = fake->TryPop(0);
  ASSERT_EQ(batch.tasks.size(), 1u);
  EXPECT_EQ(batch.tasks[0].task.deadline, fake.clock.now() + absl::Seconds(7));
  EXPECT_EQ(batch.tasks[0].enqueued, fake.clock.now());
}

TEST(BatcherTest, CancelledAfterItsDeadlineItHasExpired) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(20)}).ok());
  fake.clock.Advance(absl::Milliseconds(21));
  EXPECT_TRUE(fake->Cancel(1));
  EXPECT_EQ(fake.answer(1).calls, 1);
  EXPECT_EQ(ReasonOf(fake.answer(1).status), error_reason::kDeadlineExpired);
}

// A batch takes 2 ms, and 4 ms more for each request.
TEST(BatcherTest, WhatCannotEndInTimeIsRefusedAtOnce) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(10)}).ok());
  const Batch running = fake->TryPop(0);
  ASSERT_EQ(running.tasks.size(), 1u);
  // The running batch takes 6 ms, and then the batch of the new task takes 6 ms.
  const absl::Status refused = fake.Push(2, {.timeout = absl::Milliseconds(11)});
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDeadlineUnmeetable);
  EXPECT_EQ(fake.answer(2).calls, 0);
  EXPECT_TRUE(fake.Push(3, {.timeout = absl::Milliseconds(13)}).ok());
  // The waiting task 3 adds another 6 ms.
  EXPECT_EQ(ReasonOf(fake.Push(4, {.timeout = absl::Milliseconds(17)})), error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(fake.Push(5, {.timeout = absl::Milliseconds(19)}).ok());
  EXPECT_THAT(fake.observer.dropped, ElementsAre("unmeetable", "unmeetable"));
  // The longer the batch has run, the less time it still needs.
  fake.clock.Advance(absl::Milliseconds(4));
  EXPECT_TRUE(fake.Push(6, {.timeout = absl::Milliseconds(21)}).ok());
  fake->Finished(running, {std::nullopt});
}

TEST(BatcherTest, LessUrgentWorkIsNotAhead) {
  FakeBatcher fake({}, {.max_batch_requests = 1, .priority_levels = 2});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1).ok());
  const Batch running = fake->TryPop(0);
  for (uint64_t ticket = 2; ticket < 12; ++ticket) ASSERT_TRUE(fake.Push(ticket, {.priority = 1}).ok());
  EXPECT_EQ(ReasonOf(fake.Push(20, {.timeout = absl::Milliseconds(20), .priority = 1})),
            error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(fake.Push(21, {.timeout = absl::Milliseconds(20), .priority = 0}).ok());
}

TEST(BatcherTest, BatchesAheadAreAsFullAsTheyCanBe) {
  FakeBatcher fake({}, {.max_batch_requests = 4});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1).ok());
  const Batch running = fake->TryPop(0);
  for (uint64_t ticket = 2; ticket < 9; ++ticket) ASSERT_TRUE(fake.Push(ticket).ok());
  // The running batch takes 6 ms. Four of the seven waiting tasks take 18 ms; the other three and the new one take 18
  // ms.
  EXPECT_EQ(ReasonOf(fake.Push(20, {.timeout = absl::Milliseconds(40)})), error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(fake.Push(21, {.timeout = absl::Milliseconds(44)}).ok());
}

TEST(BatcherTest, AnIdleWorkerTakesWhateverHasNotExpired) {
  FakeBatcher fake({.num_workers = {2}}, {.max_batch_requests = 1});
  fake.Teach(100);  // a batch of one takes 600 ms
  EXPECT_TRUE(fake.Push(1, {.timeout = absl::Milliseconds(1)}).ok());
  EXPECT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(1)}).ok());  // for the other idle worker
  EXPECT_EQ(ReasonOf(fake.Push(3, {.timeout = absl::Milliseconds(1)})), error_reason::kDeadlineUnmeetable);
  EXPECT_THAT(fake.Pop(), ElementsAre(1));
  EXPECT_THAT(fake.Pop(), ElementsAre(2));
}

TEST(BatcherTest, WithoutExperienceEverythingIsAdmitted) {
  FakeBatcher fake;
  for (uint64_t ticket = 1; ticket <= 50; ++ticket) {
    EXPECT_TRUE(fake.Push(ticket, {.timeout = absl::Microseconds(1)}).ok());
  }
}

TEST(BatcherTest, WhatCannotEndInTimeAnyMoreIsNotRun) {
  FakeBatcher fake({}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1).ok());
  const Batch running = fake->TryPop(0);
  ASSERT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(20)}).ok());
  ASSERT_TRUE(fake.Push(3, {.timeout = absl::Milliseconds(100)}).ok());
  fake.clock.Advance(absl::Milliseconds(15));  // far longer than the 6 ms that were expected
  EXPECT_THAT(fake.Pop(), ElementsAre(3));
  EXPECT_EQ(fake.answer(2).calls, 1);
  EXPECT_EQ(fake.answer(2).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(fake.answer(2).status), error_reason::kDeadlineUnmeetable);
  EXPECT_THAT(fake.observer.dropped, ElementsAre("given_up"));
}

TEST(BatcherTest, FinishedBatchesTeachAndAreCompared) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1, {.points = 1000}).ok());
  Batch batch = fake->TryPop(0);
  fake.clock.Advance(absl::Milliseconds(8));
  fake->Finished(batch, {700});
  EXPECT_NEAR(absl::ToDoubleMilliseconds(
                  fake.model->on_device[0].latency->Expected({.points = 1000, .voxels = 700, .requests = 1})),
              8, 0.01);
  EXPECT_EQ(fake.model->on_device[0].latency->EstimateVoxels(1000), 700);
  EXPECT_EQ(fake.observer.predictions.size(), 0u);  // there was no prediction to compare with
  ASSERT_TRUE(fake.Push(2, {.points = 1000}).ok());
  batch = fake->TryPop(0);
  fake.clock.Advance(absl::Milliseconds(9));
  fake->Finished(batch, {700});
  ASSERT_EQ(fake.observer.predictions.size(), 1u);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(fake.observer.predictions[0].first), 8, 0.01);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(fake.observer.predictions[0].second), 9, 0.01);
  // The predictions learn nothing from a batch that failed.
  ASSERT_TRUE(fake.Push(3, {.points = 1000}).ok());
  batch = fake->TryPop(0);
  const absl::Duration expected = fake.model->on_device[0].latency->Expected({.points = 1000, .requests = 1});
  fake.clock.Advance(absl::Seconds(9));
  fake->Finished(batch, {std::nullopt});
  EXPECT_EQ(fake.model->on_device[0].latency->Expected({.points = 1000, .requests = 1}), expected);
  EXPECT_EQ(fake.observer.predictions.size(), 1u);
}

// Batches with tensors teach the predictions only if a model has no other outputs. If it has labels too, tensors take
// extra time that labels alone do not.
TEST(BatcherTest, TensorsTeachWhereAModelHasNothingElse) {
  for (const bool has_labels : {false, true}) {
    FakeBatcher fake;
    fake.model->info.has_labels = has_labels;
    const LatencyFit& latency = *fake.model->on_device[0].latency;
    const auto run = [&](uint64_t ticket, TensorSet tensors, absl::Duration time) {
      QueuedTask task = fake.Task(ticket, {.points = 1000});
      task.task.tensor_set = tensors;
      EXPECT_TRUE(fake->Push(task).ok());
      const Batch batch = fake->TryPop(0);
      fake.clock.Advance(time);
      fake->Finished(batch, {.num_voxels = 700, .had_room = tensors == 0});
    };
    run(1, 0, absl::Milliseconds(8));
    const BatchSize size = {.points = 1000, .voxels = 700, .requests = 1};
    const absl::Duration before = latency.Expected(size);
    const size_t num_predictions = fake.observer.predictions.size();
    run(2, 1, absl::Milliseconds(80));
    EXPECT_EQ(latency.Expected(size) == before, has_labels);
    EXPECT_EQ(fake.observer.predictions.size() - num_predictions, has_labels ? 0u : 1u);
    const int64_t max_points = MemoryModel::LimitsOf(*fake.model, 0, MemoryModel::kNoLimit).max_points;
    EXPECT_EQ(max_points > 1000, has_labels) << max_points;
    EXPECT_EQ(latency.EstimateVoxels(1000), 700) << "sizes are learnt of all";
  }
}

TEST(BatcherTest, WorkersThatAreGoneDoNotCount) {
  FakeBatcher fake({.num_workers = {1, 1}}, {.max_batch_requests = 1});
  fake.Teach();
  ASSERT_TRUE(fake.Push(1).ok());
  const Batch running = fake->TryPop(0);
  EXPECT_TRUE(fake.Push(2, {.timeout = absl::Milliseconds(1)}).ok());  // the second device is idle
  fake->Cancel(2);
  fake->RemoveWorker(1);
  EXPECT_EQ(ReasonOf(fake.Push(3, {.timeout = absl::Milliseconds(1)})), error_reason::kDeadlineUnmeetable);
}

TEST(BatcherTest, StopRefusesNewTasksAndHandsOutTheRest) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1).ok());
  fake->Stop();
  const absl::Status refused = fake.Push(2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDraining);
  EXPECT_EQ(fake->Pop(0).tasks.size(), 1u);
  EXPECT_THAT(fake->Pop(0).tasks, IsEmpty());
}

TEST(BatcherTest, StopAndRefuseAnswersThoseThatWait) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1).ok());
  const Batch running = fake->TryPop(0);
  ASSERT_TRUE(fake.Push(2).ok());
  ASSERT_TRUE(fake.Push(3).ok());
  fake->StopAndRefuse();
  EXPECT_THAT(fake->Pop(0).tasks, IsEmpty());
  EXPECT_EQ(ReasonOf(fake.Push(4)), error_reason::kDraining);
  EXPECT_EQ(fake.observer.depth["m"], 0);
  EXPECT_EQ(running.tasks.size(), 1u) << "what runs goes on";
}

TEST(BatcherTest, DepthIsObservedAsItChanges) {
  FakeBatcher fake;
  ASSERT_TRUE(fake.Push(1).ok());
  ASSERT_TRUE(fake.Push(2).ok());
  EXPECT_EQ(fake.observer.depth["m"], 2);
  fake->Cancel(1);
  EXPECT_EQ(fake.observer.depth["m"], 1);
  fake.Pop();
  EXPECT_EQ(fake.observer.depth["m"], 0);
}

}  // namespace
}  // namespace voxserve::batcher_test
