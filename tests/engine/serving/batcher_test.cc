#include "engine/serving/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What happened to a task: nothing yet, or the status of its one answer.
struct Answer {
  int calls = 0;
  absl::Status status;
};

QueuedTask MakeTask(uint64_t ticket, Answer* answer, int64_t num_points = 1, const std::string& model = "m") {
  const std::vector<float> points(static_cast<size_t>(num_points));
  QueuedTask queued{.ticket = ticket};
  queued.task.model = model;
  queued.task.cloud = *PointCloud::FromFloats({"x"}, points.data(), static_cast<uint64_t>(num_points));
  queued.task.done = [answer](absl::StatusOr<InferResult> result) {
    ++answer->calls;
    answer->status = result.status();
  };
  return queued;
}

absl::Status Push(Batcher& batcher, QueuedTask task) { return batcher.Push(task); }

Batcher::Options Limits(int64_t requests, int64_t bytes) {
  return {.max_queue_requests = requests, .max_queue_bytes = bytes};
}

TEST(BatcherTest, HandsTasksOutInOrderOneABatch) {
  Batcher batcher(Limits(10, 1000));
  Answer a, b;
  ASSERT_TRUE(Push(batcher, MakeTask(1, &a)).ok());
  ASSERT_TRUE(Push(batcher, MakeTask(2, &b)).ok());
  const Batch first = batcher.Pop(), second = batcher.Pop();
  ASSERT_EQ(first.tasks.size(), 1u);
  ASSERT_EQ(second.tasks.size(), 1u);
  EXPECT_EQ(first.tasks[0].ticket, 1u);
  EXPECT_EQ(second.tasks[0].ticket, 2u);
  EXPECT_EQ(a.calls + b.calls, 0);
}

TEST(BatcherTest, FullQueueIsRefusedWithAReasonAndADelay) {
  Batcher batcher(Limits(1, 1000));
  Answer a, b;
  ASSERT_TRUE(Push(batcher, MakeTask(1, &a)).ok());
  QueuedTask task = MakeTask(2, &b);
  const absl::Status refused = batcher.Push(task);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), error_reason::kQueueFull);
  EXPECT_LT(RetryDelayOf(refused), absl::Seconds(10));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("limit 1"));
  EXPECT_EQ(b.calls, 0);  // left to the caller
  EXPECT_TRUE(task.task.done != nullptr);
}

TEST(BatcherTest, BytesAreBoundedButOneLargeCloudAlwaysFits) {
  Batcher batcher(Limits(10, 100));
  Answer a, b;
  EXPECT_TRUE(Push(batcher, MakeTask(1, &a, 1000)).ok());
  const absl::Status refused = Push(batcher, MakeTask(2, &b, 1));
  EXPECT_EQ(ReasonOf(refused), error_reason::kQueueFull);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("4000 bytes waiting, limit 100"));
}

TEST(BatcherTest, LimitsCountPerModelAndRoomComesBack) {
  Batcher batcher(Limits(1, 1000));
  Answer a, b, c;
  EXPECT_TRUE(Push(batcher, MakeTask(1, &a, 1, "m")).ok());
  EXPECT_TRUE(Push(batcher, MakeTask(2, &b, 1, "n")).ok());
  batcher.Pop();
  EXPECT_TRUE(Push(batcher, MakeTask(3, &c, 1, "m")).ok());
}

TEST(BatcherTest, CancelledTaskLeavesTheQueueAndIsAnsweredOnce) {
  Batcher batcher(Limits(10, 1000));
  Answer a, b;
  ASSERT_TRUE(Push(batcher, MakeTask(1, &a)).ok());
  ASSERT_TRUE(Push(batcher, MakeTask(2, &b)).ok());
  EXPECT_TRUE(batcher.Cancel(1));
  EXPECT_FALSE(batcher.Cancel(1));
  EXPECT_FALSE(batcher.Cancel(77));
  EXPECT_EQ(a.calls, 1);
  EXPECT_EQ(a.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(batcher.Pop().tasks[0].ticket, 2u);
  EXPECT_FALSE(batcher.Cancel(2));  // it runs
  EXPECT_EQ(b.calls, 0);
}

TEST(BatcherTest, ExpiredTaskIsAnsweredAndNotHandedOut) {
  Batcher batcher(Limits(10, 1000));
  Answer late, good;
  QueuedTask expired = MakeTask(1, &late);
  expired.task.deadline = absl::Now() - absl::Milliseconds(1);
  ASSERT_TRUE(batcher.Push(expired).ok());
  ASSERT_TRUE(Push(batcher, MakeTask(2, &good)).ok());
  EXPECT_EQ(batcher.Pop().tasks[0].ticket, 2u);
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(late.status), error_reason::kDeadlineExpired);
}

TEST(BatcherTest, CancelledAfterItsDeadlineItHasExpired) {
  Batcher batcher(Limits(10, 1000));
  Answer late;
  QueuedTask expired = MakeTask(1, &late);
  expired.task.deadline = absl::Now() - absl::Milliseconds(1);
  ASSERT_TRUE(batcher.Push(expired).ok());
  EXPECT_TRUE(batcher.Cancel(1));
  EXPECT_EQ(late.calls, 1);
  EXPECT_EQ(ReasonOf(late.status), error_reason::kDeadlineExpired);
}

TEST(BatcherTest, StopRefusesNewTasksAndHandsOutTheRest) {
  Batcher batcher(Limits(10, 1000));
  Answer a, b;
  ASSERT_TRUE(Push(batcher, MakeTask(1, &a)).ok());
  batcher.Stop();
  const absl::Status refused = Push(batcher, MakeTask(2, &b));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDraining);
  EXPECT_EQ(batcher.Pop().tasks.size(), 1u);
  EXPECT_THAT(batcher.Pop().tasks, IsEmpty());
}

TEST(BatcherTest, WaitUntilIdleReturnsWhenEveryTaskIsAnswered) {
  Batcher batcher(Limits(1000, 1 << 20));
  std::vector<Answer> answers(200);
  std::atomic<int> handed_out{0};
  std::thread worker([&] {
    for (;;) {
      const Batch batch = batcher.Pop();
      if (batch.tasks.empty()) return;
      ++handed_out;
      batch.tasks[0].task.done(absl::UnknownError("ran"));
      batcher.Finished(batch);
    }
  });
  int cancelled = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(Push(batcher, MakeTask(i, &answers[i])).ok());
    if (i % 3 == 0 && batcher.Cancel(i)) ++cancelled;
  }
  batcher.Stop();
  batcher.WaitUntilIdle();
  EXPECT_EQ(handed_out + cancelled, 200);
  for (const Answer& answer : answers) EXPECT_EQ(answer.calls, 1);
  worker.join();
}

}  // namespace
}  // namespace voxserve
