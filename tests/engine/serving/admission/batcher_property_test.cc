// Tests that every task gets exactly one answer and that no batch exceeds its limits, whatever the order of events.
// Events are random, on a clock that stands still between steps, or come from many threads at once.

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error_reason.h"
#include "engine/base/steady_time.h"
#include "tests/engine/serving/admission/fake_batcher.h"
#include "tests/support/await_true.h"

namespace voxserve::batcher_property_test {
namespace {

class BatcherPropertyTest : public testing::TestWithParam<uint64_t> {};

TEST_P(BatcherPropertyTest, EveryTaskEndsOnceAndNoBatchBreaksItsLimits) {
  std::mt19937_64 random(GetParam());
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  FakeBatcher fake({.max_queue_requests = 40, .max_queue_bytes = 20'000, .num_workers = {2, 1}},
                   {.max_batch_points = 1000, .max_batch_requests = 4, .priority_levels = 3});
  std::vector<std::shared_ptr<ServedModel>> models = {fake.model, FakeModel("m", fake.model->batching, 2),
                                                      FakeModel("n",
                                                                {.max_batch_points = 300,
                                                                 .max_batch_voxels = 120,
                                                                 .max_batch_requests = 8,
                                                                 .max_queue_delay = absl::Milliseconds(50)},
                                                                2)};
  std::vector<Batch> running;
  std::set<uint64_t> taken, refused;
  uint64_t next_ticket = 1;
  const auto finish = [&](size_t index) {
    for (const QueuedTask& task : running[index].tasks) task.task.done(InferResult());
    fake->Finished(running[index],
                   {below(10) == 0 ? std::nullopt : std::optional<int64_t>(running[index].load.points / 2)});
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
  };
  const auto start = [&](size_t device) {
    Batch batch = fake->TryPop(device);
    if (batch.tasks.empty()) return;
    const ServedModel& model = *batch.tasks[0].model;
    int64_t points = 0;
    for (const QueuedTask& task : batch.tasks) {
      EXPECT_EQ(task.model.get(), &model);
      EXPECT_EQ(fake.answer(task.ticket).calls, 0);
      EXPECT_GT(task.task.deadline, fake.clock.now());
      EXPECT_LT(fake.clock.now() - task.enqueued, model.batching.max_queue_delay);
      points += static_cast<int64_t>(task.task.num_points());
    }
    EXPECT_EQ(points, batch.load.points);
    EXPECT_TRUE(points <= model.batching.max_batch_points || batch.tasks.size() == 1);
    EXPECT_LE(static_cast<int>(batch.tasks.size()), model.batching.max_batch_requests);
    if (model.batching.max_batch_voxels > 0 && batch.tasks.size() > 1) {
      const LatencyFit& latency = *model.on_device[device].latency;
      EXPECT_LE(latency.EstimateVoxels(points), model.batching.max_batch_voxels + 1);  // as it rounds up
    }
    running.push_back(std::move(batch));
  };
  for (int step = 0; step < 4000; ++step) {
    fake.clock.Advance(absl::Microseconds(below(1500)));
    switch (below(8)) {
      case 0:
        fake->ExpireDue();
        EXPECT_GT(fake->NextExpiry(), fake.clock.now());
        break;
      case 1:
        fake->Cancel(1 + below(next_ticket));
        break;
      case 2:
        if (!running.empty()) finish(below(running.size()));
        break;
      case 3:
        if (running.size() < 3) start(below(2));
        break;
      default: {
        const uint64_t ticket = next_ticket++;
        const auto& model = models[below(3)];
        const absl::Status status = fake.Push(
            ticket, {.points = static_cast<int64_t>(below(10) == 0 ? 2000 : below(400)),
                     .timeout = below(5) == 0 ? absl::InfiniteDuration() : absl::Milliseconds(below(80)),
                     .priority = static_cast<int>(below(static_cast<uint64_t>(model->batching.priority_levels))),
                     .model = model});
        (status.ok() ? taken : refused).insert(ticket);
      }
    }
  }
  fake->Stop();
  while (!running.empty()) finish(0);
  for (start(0); !running.empty(); start(1)) finish(0);
  fake->WaitUntilIdle();
  EXPECT_EQ(fake->NextExpiry(), absl::InfiniteFuture());
  for (const uint64_t ticket : taken) EXPECT_EQ(fake.answer(ticket).calls, 1) << ticket;
  for (const uint64_t ticket : refused) EXPECT_EQ(fake.answer(ticket).calls, 0) << ticket;
  EXPECT_GT(taken.size(), 300u);
  EXPECT_GT(refused.size(), 30u);
  EXPECT_EQ(fake.observer.depth["m"], 0);
  EXPECT_EQ(fake.observer.depth["n"], 0);
  EXPECT_EQ(models[1].use_count(), 1);  // the batcher keeps no reference to the model
  EXPECT_EQ(models[2].use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BatcherPropertyTest, testing::Range<uint64_t>(1, 21));

TEST(BatcherPropertyTest, AllRoomComesBack) {
  // Two tasks of 200 bytes fill the queue. However many tasks there were, two tasks must fit as at first.
  FakeBatcher fake({.max_queue_bytes = 400}, {.max_batch_requests = 1, .priority_levels = 2});
  uint64_t ticket = 1;
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(fake.Push(ticket, {.points = 50, .priority = 1}).ok());
    ASSERT_TRUE(fake.Push(ticket + 1, {.points = 50, .priority = 1}).ok());
    ASSERT_EQ(ReasonOf(fake.Push(ticket + 2, {.points = 1, .priority = 1})), error_reason::kQueueFull);
    ASSERT_TRUE(fake.Push(ticket + 3, {.points = 50, .priority = 0}).ok());  // evicts a less urgent task
    fake->Cancel(ticket);
    fake.clock.Advance(absl::Seconds(1));
    fake->ExpireDue();
    ticket += 4;
  }
}

// These tests use the real clock.
class BatcherThreadsTest : public testing::Test {
 protected:
  static Batcher::Options Options(std::vector<int> num_workers) {
    return {.max_queue_requests = 100'000, .max_queue_bytes = int64_t{1} << 40, .num_workers = std::move(num_workers)};
  }
};

TEST_F(BatcherThreadsTest, TheTimerAnswersWhenNobodyAsks) {
  Batcher batcher(Options({1}));
  const ModelHandle model = FakeModel("m", {.max_queue_delay = absl::Milliseconds(20)});
  absl::Notification later, sooner;
  absl::Status status;
  Answer unused;
  QueuedTask task = FakeTask(1, model, &unused);
  task.task.done = [&later](const absl::StatusOr<InferResult>&) { later.Notify(); };
  ASSERT_TRUE(batcher.Push(task).ok());
  task = FakeTask(2, model, &unused);
  task.task.deadline = absl::Now() + absl::Milliseconds(5);
  task.task.done = [&](const absl::StatusOr<InferResult>& result) {
    status = result.status();
    sooner.Notify();
  };
  ASSERT_TRUE(batcher.Push(task).ok());
  sooner.WaitForNotification();
  EXPECT_EQ(ReasonOf(status), error_reason::kDeadlineExpired);
  later.WaitForNotification();
  batcher.WaitUntilIdle();
}

// The timer's thread sleeps until the next deadline of a task. If that task leaves early, the thread must still wake in
// time for the deadlines of other tasks.
TEST_F(BatcherThreadsTest, TheTimerAnswersOthersThanItSleepsFor) {
  Batcher batcher(Options({1}));
  const ModelHandle model = FakeModel();
  Answer unused;
  uint64_t ticket = 0;
  const auto sleep_for_a_task_that_leaves = [&] {
    QueuedTask task = FakeTask(++ticket, model, &unused);
    task.task.deadline = SteadyNow() + absl::Milliseconds(300);
    EXPECT_TRUE(batcher.Push(task).ok());
    const auto sleeps = [&] {
      const absl::Time wakes = batcher.timer_wakes();
      return wakes > absl::InfinitePast() && wakes < absl::InfiniteFuture();
    };
    return support::AwaitTrue(sleeps, absl::Milliseconds(300)) && batcher.Cancel(ticket);
  };
  // On a busy machine a task may expire before it leaves.
  ASSERT_TRUE(support::AwaitTrue(sleep_for_a_task_that_leaves));
  for (const int after_ms : {20, 400, 10}) {
    absl::Notification answered;
    QueuedTask task = FakeTask(++ticket, model, &unused);
    task.task.deadline = SteadyNow() + absl::Milliseconds(after_ms);
    task.task.done = [&](const absl::StatusOr<InferResult>& result) {
      EXPECT_EQ(ReasonOf(result.status()), error_reason::kDeadlineExpired);
      answered.Notify();
    };
    ASSERT_TRUE(batcher.Push(task).ok());
    ASSERT_TRUE(answered.WaitForNotificationWithTimeout(absl::Seconds(30))) << after_ms;
  }
  batcher.WaitUntilIdle();
}

TEST_F(BatcherThreadsTest, WorkGoesToTheDeviceThatEndsItFirst) {
  Batcher batcher(Options({2, 1}));
  const auto model = FakeModel("m", {.max_queue_delay = absl::Minutes(5)}, 2);
  FakeBatcher::TeachModel(*model);
  Answer answers[2];
  QueuedTask task = FakeTask(1, model, &answers[0]);
  ASSERT_TRUE(batcher.Push(task).ok());
  const Batch running = batcher.Pop(0);
  // Both devices have an idle worker. But on the first device the new batch would share the device with the running
  // batch.
  Batch first, second;
  std::thread on_first([&] { first = batcher.Pop(0); });
  std::thread on_second([&] { second = batcher.Pop(1); });
  EXPECT_TRUE(support::AwaitTrue([&] { return batcher.num_waiting_workers() == 2; }));
  task = FakeTask(2, model, &answers[1]);
  ASSERT_TRUE(batcher.Push(task).ok());
  on_second.join();
  EXPECT_EQ(second.tasks.size(), 1u);
  EXPECT_EQ(second.device, 1u);
  batcher.Stop();
  on_first.join();
  EXPECT_TRUE(first.tasks.empty());
  batcher.Finished(running, {1});
  batcher.Finished(second, {1});
  batcher.WaitUntilIdle();
}

TEST_F(BatcherThreadsTest, ManyThreadsPushCancelAndRun) {
  constexpr int kTasks = 2000, kPushers = 4;
  QueueObserver observer;
  Batcher::Options options = Options({2, 2});
  options.observer = &observer;
  Batcher batcher(options);
  const auto model = FakeModel("m", {.max_batch_requests = 4, .priority_levels = 2}, 2);
  std::vector<std::atomic<int>> calls(kTasks);
  std::atomic<int> num_ran{0}, num_refused{0};
  std::vector<std::thread> workers, pushers;
  for (size_t device : {0, 0, 1, 1}) {
    workers.emplace_back([&, device] {
      for (;;) {
        const Batch batch = batcher.Pop(device);
        if (batch.tasks.empty()) return;
        num_ran += static_cast<int>(batch.tasks.size());
        for (const QueuedTask& task : batch.tasks) task.task.done(InferResult());
        batcher.Finished(batch, {batch.load.points});
      }
    });
  }
  for (int pusher = 0; pusher < kPushers; ++pusher) {
    pushers.emplace_back([&, pusher] {
      for (int i = pusher; i < kTasks; i += kPushers) {
        Answer unused;
        QueuedTask task = FakeTask(static_cast<uint64_t>(i), model, &unused, 10);
        task.task.priority = i % 2;
        if (i % 5 == 0) task.task.deadline = absl::Now() + absl::Microseconds(50 * (i % 40));
        task.task.done = [&calls, i](const absl::StatusOr<InferResult>&) { ++calls[static_cast<size_t>(i)]; };
        if (!batcher.Push(task).ok()) {
          ++num_refused;
          ++calls[static_cast<size_t>(i)];
        }
        if (i % 7 == 0) batcher.Cancel(static_cast<uint64_t>(i));
      }
    });
  }
  for (std::thread& pusher : pushers) pusher.join();
  batcher.Stop();
  batcher.WaitUntilIdle();
  for (std::thread& worker : workers) worker.join();
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  EXPECT_GT(num_ran, 0);
  EXPECT_EQ(observer.depth["m"], 0);
}

}  // namespace
}  // namespace voxserve::batcher_property_test
