// Tests that models share a device by the time that they use: first ModelTurns, against orders found by hand, then the
// batcher in simulated time, in which a batch takes (2 ms + 4 ms for each request) times its model's slowdown.

#include "engine/serving/admission/model_turns.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::model_turns_test {
namespace {

std::shared_ptr<ServedModel> Weighted(const std::string& name, int weight) {
  return FakeModel(name, {.device_weight = weight});
}

class ModelTurnsTest : public testing::Test {
 protected:
  void Add(const std::shared_ptr<ServedModel>& model, absl::Duration timeout = absl::Minutes(1)) {
    QueuedTask queued = FakeTask(tasks_.size(), model, &answer_);
    queued.task.deadline = clock_.now() + timeout;
    tasks_.push_back(std::make_unique<WaitingTask>(queued, latency_, clock_.now()));
    tasks_.back()->queued = std::move(queued);
    tasks_.back()->arrival = tasks_.size();
    turns_.Add(tasks_.back().get());
  }
  // Runs the task whose turn it is. Returns the name of its model.
  std::string Run(const std::map<std::string, double>& seconds) {
    WaitingTask* task = turns_.First();
    if (task == nullptr) return "";
    const std::string model = task->model()->info.name;
    turns_.Run(task, seconds.at(model));
    return model;
  }

  FakeClock clock_;
  LatencyModel latency_{{1}};
  Answer answer_;
  std::vector<std::unique_ptr<WaitingTask>> tasks_;
  ModelTurns turns_;
};

TEST_F(ModelTurnsTest, TurnsGoByTimeAndNotByNumber) {
  const auto slow = FakeModel("slow"), quick = FakeModel("quick");
  for (int i = 0; i < 100; ++i) Add(slow);
  for (int i = 0; i < 100; ++i) Add(quick);
  std::map<std::string, int> runs;
  for (int i = 0; i < 88; ++i) ++runs[Run({{"slow", 0.07}, {"quick", 0.01}})];
  EXPECT_EQ(runs["slow"], 11);
  EXPECT_EQ(runs["quick"], 77);
}

TEST_F(ModelTurnsTest, WeightsDivideTheTime) {
  const auto heavy = Weighted("a", 3), light = Weighted("b", 1);
  for (int i = 0; i < 100; ++i) Add(light);
  for (int i = 0; i < 100; ++i) Add(heavy);
  std::map<std::string, int> runs;
  for (int i = 0; i < 80; ++i) ++runs[Run({{"a", 0.01}, {"b", 0.01}})];
  EXPECT_EQ(runs["a"], 60);
  EXPECT_EQ(runs["b"], 20);
}

TEST_F(ModelTurnsTest, AReloadedModelHasTheWeightOfItsNewVersion) {
  const auto other = Weighted("b", 1), before = Weighted("a", 1), after = Weighted("a", 4);
  for (int i = 0; i < 100; ++i) Add(other);
  Add(before);
  for (int i = 0; i < 99; ++i) Add(after);
  std::map<std::string, int> runs;
  for (int i = 0; i < 50; ++i) ++runs[Run({{"a", 0.01}, {"b", 0.01}})];
  EXPECT_EQ(runs["a"], 40);
}

TEST_F(ModelTurnsTest, IdleTimeIsNoCredit) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  for (int i = 0; i < 200; ++i) Add(a);
  for (int i = 0; i < 100; ++i) Run({{"a", 0.01}});  // for a second, "b" was not in the queue
  for (int i = 0; i < 100; ++i) Add(b);
  std::map<std::string, int> runs;
  for (int i = 0; i < 40; ++i) ++runs[Run({{"a", 0.01}, {"b", 0.01}})];
  EXPECT_NEAR(runs["b"], 20, 1) << "from now on they share";
}

TEST_F(ModelTurnsTest, ComingAgainDoesNotWipeOutWhatIsOwed) {
  const auto slow = FakeModel("slow"), quick = FakeModel("quick");
  for (int i = 0; i < 1000; ++i) Add(quick);
  std::map<std::string, int> runs;
  // Model "slow" has one request at a time, so it leaves the queue with each request.
  for (int i = 0; i < 500; ++i) {
    if (i % 2 == 0 && turns_.ClientsOf("quick").num_active() > 0 && runs["slow"] * 2 <= i) Add(slow);
    ++runs[Run({{"slow", 0.1}, {"quick", 0.01}})];
  }
  EXPECT_NEAR(runs["quick"], 10 * runs["slow"], 20) << runs["slow"];
}

TEST_F(ModelTurnsTest, BetweenEqualsTheMoreUrgentComesFirst) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  Add(a, absl::Seconds(2));
  Add(b, absl::Seconds(1));
  EXPECT_EQ(Run({{"a", 0.01}, {"b", 0.01}}), "b");
  EXPECT_EQ(Run({{"a", 0.01}, {"b", 0.01}}), "a");
  EXPECT_TRUE(turns_.empty());
  EXPECT_EQ(turns_.First(), nullptr);
}

TEST_F(ModelTurnsTest, WhatWasPredictedWronglyIsCorrected) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  for (int i = 0; i < 100; ++i) Add(a);
  for (int i = 0; i < 100; ++i) Add(b);
  std::map<std::string, int> runs;
  for (int i = 0; i < 80; ++i) {
    const std::string model = Run({{"a", 0.001}, {"b", 0.01}});
    ++runs[model];
    if (model == "a") turns_.Correct("a", 0.029);  // it takes 30 ms, but the prediction stays at 1 ms
  }
  EXPECT_NEAR(runs["b"], 3 * runs["a"], 2);
}

TEST_F(ModelTurnsTest, ACorrectionIsNeverACredit) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  for (int i = 0; i < 100; ++i) Add(a);
  for (int i = 0; i < 100; ++i) Add(b);
  turns_.Correct("a", -1000);
  turns_.Correct("gone", 5);
  turns_.Correct("gone", -5);
  std::map<std::string, int> runs;
  for (int i = 0; i < 40; ++i) ++runs[Run({{"a", 0.01}, {"b", 0.01}})];
  EXPECT_EQ(runs["a"], 20);
}

TEST_F(ModelTurnsTest, AModelWithoutTasksHoldsUpNothing) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  for (int i = 0; i < 3; ++i) Add(a);
  for (int i = 0; i < 3; ++i) Add(b);
  for (int i = 0; i < 3; ++i) turns_.Remove(tasks_[i].get());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run({{"b", 0.01}}), "b");
  EXPECT_TRUE(turns_.empty());
}

TEST_F(ModelTurnsTest, TellsANewcomerOfTheOthersTurns) {
  const auto a = FakeModel("a"), b = Weighted("b", 2), c = FakeModel("c");
  for (int i = 0; i < 3; ++i) Add(a);
  for (int i = 0; i < 5; ++i) Add(b);
  Run({{"a", 0.1}, {"b", 0.1}});
  Run({{"a", 0.1}, {"b", 0.1}});
  const std::vector<WaitingWork> before_a = turns_.WorkOfOthers(*a);
  ASSERT_EQ(before_a.size(), 1);
  EXPECT_EQ(before_a[0].model, b.get());
  EXPECT_EQ(before_a[0].load.requests, 4);
  EXPECT_NEAR(before_a[0].turn->lead_seconds, (0.1 - 0.05) * 2, 1e-9);
  EXPECT_EQ(before_a[0].turn->weight_ratio, 2);
  const std::vector<WaitingWork> before_c = turns_.WorkOfOthers(*c);
  ASSERT_EQ(before_c.size(), 2);
  EXPECT_NEAR(before_c[0].turn->lead_seconds, -0.1, 1e-9) << "a has had more than c, which begins now";
  EXPECT_EQ(before_c[0].turn->weight_ratio, 1);
}

// Runs models on one device that runs one batch at a time.
class SharedDeviceTest : public testing::Test {
 protected:
  struct Traffic {
    std::shared_ptr<ServedModel> model;
    double slowdown = 1;
    int in_flight = 1;
    absl::Duration pause;  // after an answer
    absl::Duration timeout = absl::Minutes(1);
    // RunFor sets these.
    int met = 0, missed = 0;
    absl::Duration device_time, longest;
  };

  // All requests are of one client, so only the models' turns order them.
  void RunFor(absl::Duration span, std::vector<Traffic>& traffic) {
    for (Traffic& each : traffic) FakeBatcher::TeachModel(*each.model, each.slowdown);
    std::multimap<absl::Time, Traffic*> sends;
    for (Traffic& each : traffic) {
      for (int i = 0; i < each.in_flight; ++i) sends.emplace(fake_.clock.now(), &each);
    }
    const absl::Time end = fake_.clock.now() + span;
    while (fake_.clock.now() < end) {
      const absl::Time now = fake_.clock.now();
      while (!sends.empty() && sends.begin()->first <= now) {
        Traffic* const each = sends.begin()->second;
        const absl::Time sent = sends.begin()->first;
        sends.erase(sends.begin());
        QueuedTask task = fake_.Task(++ticket_, {.timeout = each->timeout, .model = each->model});
        task.task.done = [this, each, sent, &sends](const absl::StatusOr<InferResult>& result) {
          const absl::Time ended = fake_.clock.now();
          result.ok() ? ++each->met : ++each->missed;
          if (result.ok()) each->longest = std::max(each->longest, ended - sent);
          sends.emplace(ended + each->pause, each);
        };
        if (fake_->Push(task).ok()) continue;
        ++each->missed;
        sends.emplace(now + absl::Milliseconds(5), each);
      }
      const Batch batch = fake_->TryPop(0);
      if (batch.tasks.empty()) {
        fake_.clock.Advance(absl::Milliseconds(1));
        continue;
      }
      for (Traffic& each : traffic) {
        if (each.model != batch.tasks.front().model) continue;
        const absl::Duration time =
            absl::Milliseconds(each.slowdown * (2 + 4 * static_cast<double>(batch.tasks.size())));
        each.device_time += time;
        fake_.clock.Advance(time);
      }
      for (const QueuedTask& task : batch.tasks) task.task.done(InferResult());
      fake_->Finished(batch, {.num_voxels = 0});
    }
  }

  FakeBatcher fake_;
  uint64_t ticket_ = 0;
};

TEST_F(SharedDeviceTest, AFloodLeavesAnotherModelsSingleRequestsTheirTurn) {
  std::vector<Traffic> traffic = {
      {.model = FakeModel("heavy"), .slowdown = 2, .in_flight = 200},
      {.model = FakeModel("light"), .pause = absl::Milliseconds(20), .timeout = absl::Milliseconds(160)}};
  RunFor(absl::Seconds(20), traffic);
  EXPECT_GT(traffic[1].met, 150);
  EXPECT_EQ(traffic[1].missed, 0);
  // A light request may wait for the heavy batch that runs and for one more heavy batch, whose turn comes first. Then
  // it takes 6 ms itself.
  EXPECT_LE(traffic[1].longest, absl::Milliseconds(2 * 2 * (2 + 8 * 4) + 6));
  EXPECT_GT(traffic[0].device_time, absl::Seconds(17)) << "the flood has the rest";
}

TEST_F(SharedDeviceTest, TwoFloodsShareTheTimeEquallyHoweverLongTheirBatches) {
  std::vector<Traffic> traffic = {{.model = FakeModel("slow"), .slowdown = 5, .in_flight = 50},
                                  {.model = FakeModel("quick"), .slowdown = 0.5, .in_flight = 300}};
  RunFor(absl::Seconds(30), traffic);
  EXPECT_NEAR(absl::ToDoubleSeconds(traffic[0].device_time), 15, 0.5);
  EXPECT_NEAR(absl::ToDoubleSeconds(traffic[1].device_time), 15, 0.5);
}

TEST_F(SharedDeviceTest, TimeIsSharedByWeight) {
  std::vector<Traffic> traffic = {{.model = Weighted("one", 1), .in_flight = 100},
                                  {.model = Weighted("four", 4), .slowdown = 3, .in_flight = 100}};
  RunFor(absl::Seconds(30), traffic);
  EXPECT_NEAR(absl::ToDoubleSeconds(traffic[0].device_time), 6, 0.5);
  EXPECT_NEAR(absl::ToDoubleSeconds(traffic[1].device_time), 24, 0.5);
}

TEST_F(SharedDeviceTest, OneOfManyIsNeverStarved) {
  std::vector<Traffic> traffic;
  for (int i = 0; i < 20; ++i) {
    traffic.push_back({.model = FakeModel(absl::StrCat("m", i)), .slowdown = 0.2 * (1 + i), .in_flight = 1 + 5 * i});
  }
  RunFor(absl::Seconds(60), traffic);
  for (const Traffic& each : traffic) {
    // The first models have so few requests at a time that they need less than their share.
    EXPECT_GT(each.met, 10) << each.model->info.name;
    if (each.in_flight > 20) {
      EXPECT_NEAR(absl::ToDoubleSeconds(each.device_time), 3, 1.2) << each.model->info.name;
    }
  }
}

TEST_F(SharedDeviceTest, AModelThatIsUnloadedWhileItWaitsRunsAndLeaves) {
  auto leaving = FakeModel("leaving");
  const auto staying = FakeModel("staying");
  FakeBatcher::TeachModel(*leaving);
  FakeBatcher::TeachModel(*staying);
  for (uint64_t ticket = 1; ticket <= 20; ++ticket) {
    ASSERT_TRUE(fake_.Push(ticket, {.timeout = absl::Minutes(1), .model = ticket % 2 == 0 ? leaving : staying}).ok());
  }
  const std::weak_ptr<ServedModel> weights = leaving;
  leaving.reset();
  ASSERT_TRUE(fake_->Cancel(4));
  std::map<std::string, size_t> tasks;
  for (int i = 0; i < 4; ++i) {
    Batch batch = fake_->TryPop(0);
    ASSERT_FALSE(batch.tasks.empty());
    tasks[batch.tasks.front().task.model] += batch.tasks.size();
    fake_.clock.Advance(absl::Milliseconds(30));
    fake_->Finished(batch, {.num_voxels = 0});
  }
  EXPECT_EQ(tasks["leaving"], 9);
  EXPECT_EQ(tasks["staying"], 10);
  EXPECT_TRUE(weights.expired()) << "the queue keeps nothing of it";
  EXPECT_TRUE(fake_->TryPop(0).tasks.empty());
}

// A batch seems to take ten minutes. The device may have stood still, or the clock may have been set.
TEST_F(SharedDeviceTest, AStallIsNotChargedToTheModelThatRan) {
  const auto stalled = FakeModel("stalled"), other = FakeModel("other");
  FakeBatcher::TeachModel(*stalled);
  FakeBatcher::TeachModel(*other);
  uint64_t ticket = 0;
  ASSERT_TRUE(fake_.Push(++ticket, {.timeout = absl::Minutes(30), .model = stalled}).ok());
  const Batch batch = fake_->TryPop(0);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(fake_.Push(++ticket, {.timeout = absl::Minutes(30), .model = other}).ok());
  }
  fake_.clock.Advance(absl::Minutes(10));
  fake_->Finished(batch, {.num_voxels = 0});
  ASSERT_TRUE(fake_.Push(++ticket, {.timeout = absl::Minutes(30), .model = stalled}).ok());
  absl::Duration waited;
  for (bool has_run = false; !has_run;) {
    const Batch next = fake_->TryPop(0);
    ASSERT_FALSE(next.tasks.empty());
    has_run = next.tasks.front().model == stalled;
    const absl::Duration time = absl::Milliseconds(2 + 4 * next.tasks.size());
    fake_.clock.Advance(time);
    waited += time;
    fake_->Finished(next, {.num_voxels = 0});
  }
  EXPECT_LT(waited, absl::Milliseconds(400));
}

TEST_F(SharedDeviceTest, ABatchThatEndsAfterItsModelIsGoneChangesNothing) {
  const auto a = FakeModel("a"), b = FakeModel("b");
  ASSERT_TRUE(fake_.Push(1, {.timeout = absl::Minutes(5), .model = a}).ok());
  const Batch batch = fake_->TryPop(0);
  ASSERT_TRUE(fake_.Push(2, {.timeout = absl::Minutes(5), .model = b}).ok());
  fake_.clock.Advance(absl::Seconds(50));
  fake_->Finished(batch, {});
  ASSERT_TRUE(fake_.Push(3, {.timeout = absl::Minutes(5), .model = a}).ok());
  EXPECT_EQ(fake_.Pop(), std::vector<uint64_t>({2})) << "it came first";
}

}  // namespace
}  // namespace voxserve::model_turns_test
