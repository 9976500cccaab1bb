// Tests when LatencyModel predicts that runs start and end, against times computed by hand. A batch takes 2 ms, and 4
// ms more for each request; a batch has at most 8 requests of one model.

#include "engine/serving/admission/latency_model.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/engine/serving/admission/fake_batcher.h"

namespace voxserve::latency_model_test {
namespace {

constexpr WorkSize kOne = {.requests = 1, .points = 1};
const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// Returns a model whose batches take slowdowns[i] times as long on device i.
std::shared_ptr<ServedModel> TaughtModel(const std::vector<double>& slowdowns) {
  auto model = FakeModel("m", {}, static_cast<int>(slowdowns.size()));
  for (size_t i = 0; i < slowdowns.size(); ++i) {
    auto alone = FakeModel();
    FakeBatcher::TeachModel(*alone, slowdowns[i]);
    model->on_device[i].latency = std::move(alone->on_device.front().latency);
  }
  return model;
}

LatencyModel::Run Predict(const LatencyModel& latency, const ServedModel& model,
                          const std::vector<WaitingWork>& ahead) {
  return latency.PredictRun(model, kOne, ahead, UnlimitedBytes, kNow);
}

TEST(LatencyModelTest, NothingTakesTimeBeforeSomethingIsKnown) {
  const auto model = FakeModel();
  const LatencyModel latency({1});
  EXPECT_EQ(latency.LongestAlone(*model, {.requests = 1, .points = 1000}), absl::ZeroDuration());
  EXPECT_EQ(latency.PredictRun(*model, {.requests = 1, .points = 1000}, {}, UnlimitedBytes, kNow).end,
            absl::ZeroDuration());
}

TEST(LatencyModelTest, WhatRunsComesFirst) {
  const auto model = TaughtModel({1});
  LatencyModel latency({1});
  EXPECT_EQ(latency.num_idle_workers(), 1);
  latency.Start(0, 1, absl::Milliseconds(10), kNow - absl::Milliseconds(3));
  EXPECT_EQ(latency.num_idle_workers(), 0);
  const LatencyModel::Run run = Predict(latency, *model, {});
  EXPECT_NEAR(Ms(run.start), 7, 0.1);
  EXPECT_NEAR(Ms(run.end), 7 + 6, 0.1);
  EXPECT_NEAR(Ms(latency.Finish(0, 1, kNow)), 3, 1e-3);
  EXPECT_NEAR(Ms(Predict(latency, *model, {}).start), 0, 1e-3);
}

TEST(LatencyModelTest, WhatWaitsRunsInFullBatchesBefore) {
  const auto model = TaughtModel({1}), other = TaughtModel({1});
  const LatencyModel latency({1});
  // The 18 waiting requests make two full batches, and a third batch that the newcomer joins.
  const LatencyModel::Run own =
      Predict(latency, *model, {{.model = model.get(), .load = {.requests = 18, .points = 18}}});
  EXPECT_NEAR(Ms(own.start), 2 * (2 + 8 * 4), 1);
  EXPECT_NEAR(Ms(own.end - own.start), 2 + 8 * 4, 1) << "as full as it can become";
  // The 9 requests of another version make two batches too, but the newcomer joins neither.
  const LatencyModel::Run alone =
      Predict(latency, *model, {{.model = other.get(), .load = {.requests = 9, .points = 9}}});
  EXPECT_NEAR(Ms(alone.start), 2 * 2 + 9 * 4, 1);
  EXPECT_NEAR(Ms(alone.end - alone.start), 2 + 4, 0.1);
}

TEST(LatencyModelTest, ABatchSharesItsDevice) {
  const auto model = TaughtModel({1});
  LatencyModel latency({2});
  EXPECT_NEAR(Ms(Predict(latency, *model, {}).end), 2 * 6, 0.1) << "another may start on the second worker";
  EXPECT_NEAR(Ms(latency.BoundBesideOthers(*model, 0, kOne)), 6, 0.1);
  latency.Start(0, 1, absl::Milliseconds(10), kNow);
  EXPECT_NEAR(Ms(latency.BoundBesideOthers(*model, 0, kOne)), 2 * 6, 0.1);
  latency.RemoveWorker(0);
  EXPECT_EQ(latency.num_idle_workers(), 0);
  EXPECT_NEAR(Ms(Predict(latency, *model, {}).end), 10 + 6, 0.1);
}

TEST(LatencyModelTest, DevicesDifferInSpeed) {
  const auto model = TaughtModel({1, 3});
  LatencyModel latency({2, 1});
  EXPECT_NEAR(Ms(LatencyModel::Expected(*model, 0, kOne)), 6, 0.1);
  EXPECT_NEAR(Ms(latency.LongestAlone(*model, kOne)), 18, 0.3);
  EXPECT_TRUE(latency.EndsSooner(*model, kOne, 0, 1));
  latency.Start(0, 1, absl::Milliseconds(10), kNow);
  EXPECT_TRUE(latency.EndsSooner(*model, kOne, 0, 1)) << "12 ms beside another";
  EXPECT_FALSE(latency.EndsSooner(*model, kOne, 1, 0));
}

TEST(LatencyModelTest, WhereTimesAreEqualTheEmptierDeviceIsBetter) {
  const auto unknown = FakeModel("m", {}, 2);
  LatencyModel latency({2, 2});
  EXPECT_FALSE(latency.EndsSooner(*unknown, kOne, 0, 1));
  EXPECT_FALSE(latency.EndsSooner(*unknown, kOne, 1, 0));
  latency.Start(0, 1, absl::Milliseconds(10), kNow);
  EXPECT_TRUE(latency.EndsSooner(*unknown, kOne, 1, 0));
}

}  // namespace
}  // namespace voxserve::latency_model_test
