// Tests the predicted time of farthest point sampling: first SelectionFit, then the batcher that adds it to a batch's
// time. In the tests of SelectionFit, a simulated selection takes 40 ns for each point of the cloud and 5 us for each
// selected point.

#include "engine/serving/admission/selection_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "engine/base/error_reason.h"
#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::selection_fit_test {
namespace {

WorkSize SampleOf(int64_t points, int64_t selected, int64_t samples = 1) {
  return {.requests = samples,
          .points = points * samples,
          .selections = samples,
          .sampled_points = points * samples,
          .selected_points = selected * samples};
}

absl::Duration TimeOf(const WorkSize& load) {
  return absl::Nanoseconds(40) * load.sampled_points + absl::Microseconds(5) * load.selected_points;
}

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

TEST(SelectionFitTest, KnowsNothingBeforeTheFirstSample) {
  SelectionFit fit;
  EXPECT_EQ(fit.Expected(SampleOf(1000, 10)), absl::ZeroDuration());
  EXPECT_FALSE(fit.Knows(SampleOf(1000, 10)));
  EXPECT_TRUE(fit.Knows({.requests = 3, .points = 100})) << "there is nothing to know";
}

TEST(SelectionFitTest, PassesOverWhatIsNoMeasurement) {
  SelectionFit fit;
  fit.Observe({.requests = 1, .points = 100}, absl::Milliseconds(5));
  for (const absl::Duration time : {absl::ZeroDuration(), -absl::Seconds(1), absl::InfiniteDuration()}) {
    fit.Observe(SampleOf(1000, 10), time);
  }
  EXPECT_FALSE(fit.Knows(SampleOf(1000, 10)));
  EXPECT_EQ(fit.Bound(SampleOf(1000, 10)), absl::ZeroDuration());
}

TEST(SelectionFitTest, LearnsBothSizes) {
  SelectionFit fit;
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const WorkSize load = SampleOf(1000 + random() % 100'000, 16 + random() % 4000, 1 + random() % 4);
    fit.Observe(load, TimeOf(load) * std::exp(std::normal_distribution<>(0, 0.03)(random)));
  }
  for (const WorkSize& load : {SampleOf(100'000, 100), SampleOf(100'000, 4000), SampleOf(20'000, 2000, 3)}) {
    EXPECT_NEAR(Ms(fit.Expected(load)), Ms(TimeOf(load)), 0.15 * Ms(TimeOf(load)));
    EXPECT_GE(fit.Bound(load), fit.Expected(load));
    EXPECT_TRUE(fit.Knows(load));
  }
  EXPECT_FALSE(fit.Knows(SampleOf(1'000'000, 100)));
  SelectionFit successor;
  successor.StartAs(fit);
  EXPECT_EQ(successor.Expected(SampleOf(5000, 50)), fit.Expected(SampleOf(5000, 50)));
}

InferTask TaskOf(uint64_t points, std::optional<FarthestPoints> sample) {
  const std::vector<float> floats(points);
  InferTask task;
  task.cloud = *PointCloud::FromFloats({"x"}, floats.data(), points);
  task.sample = sample;
  return task;
}

TEST(LoadTest, CountsWhatASampleBringsAndTakesAway) {
  const WorkSize plain = WorkSize::Of(TaskOf(100, std::nullopt));
  EXPECT_EQ(plain.points, 100);
  EXPECT_EQ(plain.selections + plain.sampled_points + plain.selected_points + plain.unseen_points, 0);
  const WorkSize beside = WorkSize::Of(TaskOf(100, FarthestPoints{.num_points = 30}));
  EXPECT_EQ(beside.selections, 1);
  EXPECT_EQ(beside.sampled_points, 100);
  EXPECT_EQ(beside.selected_points, 30);
  EXPECT_EQ(beside.network_points(), 100);
  EXPECT_EQ(WorkSize::Of(TaskOf(100, FarthestPoints{.num_points = 30, .restricts_network = true})).network_points(),
            30);
  WorkSize sum = plain;
  sum += beside;
  sum += beside;
  sum -= plain;
  EXPECT_EQ(sum.requests, 2);
  EXPECT_EQ(sum.selected_points, 60);
  EXPECT_EQ(sum.Scaled(2.5).requests, 5);
  EXPECT_EQ(sum.Scaled(2.5).selected_points, 150);
  EXPECT_EQ(sum.Scaled(-0.5).points, -100);
}

TEST(LoadTest, SamplesThatCannotBeAreBoundedByTheCloud) {
  for (const uint64_t num_points : {uint64_t{101}, std::numeric_limits<uint64_t>::max()}) {
    for (const bool restricts : {false, true}) {
      const WorkSize load =
          WorkSize::Of(TaskOf(100, FarthestPoints{.num_points = num_points, .restricts_network = restricts}));
      EXPECT_EQ(load.selected_points, 100);
      EXPECT_EQ(load.network_points(), 100);
    }
  }
  EXPECT_EQ(WorkSize::Of(TaskOf(100, FarthestPoints{.num_points = 0, .restricts_network = true})).network_points(), 0);
  EXPECT_EQ(WorkSize::Of(TaskOf(0, FarthestPoints{.num_points = 5})).selected_points, 0);
}

// The network takes 6 ms for a request, and selecting n points takes n ms.
class SampledRequestsTest : public testing::Test {
 protected:
  SampledRequestsTest() : fake_({}, {.max_batch_requests = 1}) {
    fake_.Teach();
    for (int64_t selected = 1; selected <= 40; ++selected) {
      fake_.model->on_device[0].selection->Observe(SampleOf(50, selected), absl::Milliseconds(selected));
    }
    EXPECT_TRUE(fake_.Push(1).ok());
    running_ = fake_->TryPop(0);
  }
  absl::Status Push(uint64_t ticket, absl::Duration timeout, uint64_t selected) {
    QueuedTask task = fake_.Task(ticket, {.points = 50, .timeout = timeout});
    if (selected > 0) task.task.sample = FarthestPoints{.num_points = selected};
    return fake_->Push(task);
  }

  FakeBatcher fake_;
  Batch running_;
};

TEST_F(SampledRequestsTest, ASampleThatTakesTooLongIsRefused) {
  EXPECT_TRUE(Push(2, absl::Milliseconds(40), 0).ok());
  EXPECT_EQ(ReasonOf(Push(3, absl::Milliseconds(40), 40)), error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(Push(4, absl::Milliseconds(90), 40).ok());
}

TEST_F(SampledRequestsTest, SamplesAheadDelayWhatComes) {
  ASSERT_TRUE(Push(2, absl::Milliseconds(500), 40).ok());
  ASSERT_TRUE(Push(3, absl::Milliseconds(500), 40).ok());
  EXPECT_EQ(ReasonOf(Push(4, absl::Milliseconds(60), 0)), error_reason::kDeadlineUnmeetable);
  EXPECT_TRUE(Push(5, absl::Milliseconds(200), 0).ok());
}

TEST_F(SampledRequestsTest, ABatchTeachesEachPartItsOwnTime) {
  ASSERT_TRUE(Push(2, absl::Minutes(1), 10).ok());
  fake_->Finished(running_, {});
  const absl::Duration network = fake_.model->on_device[0].latency->Expected({.requests = 1});
  const Batch batch = fake_->TryPop(0);
  ASSERT_EQ(batch.tasks.size(), 1);
  EXPECT_NEAR(Ms(batch.predicted), 6 + 10, 1);
  fake_.clock.Advance(absl::Milliseconds(16));
  fake_->Finished(batch, {.num_voxels = 40, .sample_share = 10.0 / 16});
  EXPECT_NEAR(Ms(fake_.model->on_device[0].latency->Expected({.points = 50, .voxels = 40, .requests = 1})), Ms(network),
              1);
  EXPECT_NEAR(Ms(fake_.model->on_device[0].selection->Expected(SampleOf(50, 10))), 10, 1);
  ASSERT_EQ(fake_.observer.predictions.size(), 1);
  EXPECT_NEAR(Ms(fake_.observer.predictions[0].first), 16, 1);
}

TEST_F(SampledRequestsTest, PointsThatWereChosenTeachNoDensity) {
  const auto model = FakeModel("restricted");
  QueuedTask task = fake_.Task(2, {.points = 1000, .timeout = absl::Minutes(1), .model = model});
  task.task.sample = FarthestPoints{.num_points = 100, .restricts_network = true};
  ASSERT_TRUE(fake_->Push(task).ok());
  const Batch batch = fake_->TryPop(0);
  fake_.clock.Advance(absl::Milliseconds(20));
  fake_->Finished(running_, {});
  model->on_device[0].latency->ObserveVoxels(100, 50);
  fake_->Finished(batch, {.num_voxels = 100, .sample_share = 0.5});
  EXPECT_EQ(model->on_device[0].latency->EstimateVoxels(1000), 500);
  EXPECT_GT(model->on_device[0].latency->Expected({.points = 100, .voxels = 100, .requests = 1}), absl::ZeroDuration());
}

}  // namespace
}  // namespace voxserve::selection_fit_test
