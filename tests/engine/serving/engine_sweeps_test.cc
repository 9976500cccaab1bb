// Tests that the engine, through its public interface, runs several sweeps (the clouds of earlier frames and their
// poses) as one cloud: the answers, the errors, and the copies that it keeps on a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/engine.h"
#include "engine/serving/streams/sweep_history.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/minkunet.h"
#include "tests/support/test_device.h"

namespace voxserve::engine_sweeps_test {
namespace {

using ::testing::HasSubstr;

// Records the bytes that the engine reports for its device copies of sweeps.
class CopiesGauge final : public EngineObserver {
 public:
  void OnDeviceMemory(std::string_view, std::string_view kind, int64_t bytes) override {
    if (kind != "sweeps") return;
    absl::MutexLock lock(&mutex_);
    most_ = std::max(most_, bytes);
    last_ = bytes;
  }
  int64_t most() const {
    absl::MutexLock lock(&mutex_);
    return most_;
  }
  // Waits until there are no copies. Returns false if some are left after ten seconds.
  bool AwaitNone() const {
    absl::MutexLock lock(&mutex_);
    const auto is_none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return last_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_none), absl::Seconds(10));
  }

 private:
  mutable absl::Mutex mutex_;
  int64_t most_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

class EngineSweepsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    const support::NetworkOptions network = {
        .width = 0.25, .num_classes = 5, .features = {"x", "y", "z", "intensity", "age"}, .voxel_size_m = 0.5f};
    support::TestModel model = support::MinkUNet(network);
    model.config = "max_points: 5 batching { priority_levels: 3 }";
    model.WriteTo(std::filesystem::path(repository_.path()) / "sweeps");
    engine_ = MakeEngine({.model_repository = repository_.path(),
                          .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0",
                          .observer = &copies_});
  }

  absl::StatusOr<InferResult> Run(const std::vector<PlacedSweep>& sweeps, const std::string& age_feature) {
    return Infer(*engine_, {.model = "sweeps",
                            .cloud = sweeps.front().sweep->cloud,
                            .return_scores = true,
                            .sweeps = sweeps,
                            .age_feature = age_feature});
  }

  Repository repository_;
  CopiesGauge copies_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineSweepsTest, support::AllDevices(), support::DeviceName);

// Returns two sweeps. The sensor takes the newer one a second after the older one, and a metre further along x. The
// engine moves the older points into the newer sweep's coordinates. Moving them by a whole metre is exact in float32.
std::vector<PlacedSweep> TwoSweeps(const std::vector<float>& older, const std::vector<float>& newer) {
  SweepHistory history({.num_sweeps = 2});
  EXPECT_TRUE(history.Add(Cloud(older), {}, absl::UnixEpoch()).ok());
  return *history.Add(Cloud(newer), {.x = 1}, absl::UnixEpoch() + absl::Seconds(1));
}

TEST_P(EngineSweepsTest, AnswersForTheNewestSweepAsIfAllWereOneCloud) {
  const auto sweeps = TwoSweeps({4, 2, 1, 0.5f, 3, 3, 1, 0.25f}, {4, 3, 1, 0.5f, 2, 2, 1, 0.125f, 0, 0, 0, 0});
  const auto result = Run(sweeps, "age");
  ASSERT_TRUE(result.ok()) << result.status();
  const float merged[] = {4, 3, 1, 0.5f, 0, 2, 2, 1, 0.125f, 0, 0, 0, 0, 0, 0, 3, 2, 1, 0.5f, 1, 2, 3, 1, 0.25f, 1};
  const auto expected =
      Infer(*engine_, {.model = "sweeps",
                       .cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity", "age"}, merged, 5),
                       .return_scores = true});
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(expected->labels().size(), 5u);
  EXPECT_EQ(result->labels(), std::vector<uint8_t>(expected->labels().begin(), expected->labels().begin() + 3));
  EXPECT_EQ(result->scores(), std::vector<float>(expected->scores().begin(), expected->scores().begin() + 15));
  EXPECT_EQ(result->counts.used, 5);
  EXPECT_EQ(result->counts.voxels, expected->counts.voxels);
}

TEST_P(EngineSweepsTest, SaysWhatAStreamMayAskFor) {
  const auto info = engine_->GetModel("sweeps", 0);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->axes, ::testing::ElementsAre("x", "y", "z"));
  EXPECT_EQ(info->priority_levels, 3);
  EXPECT_TRUE(info->has_scores);
}

// The device copies of sweeps that no longer exist must be freed even if no later batch runs and needs the memory.
TEST_P(EngineSweepsTest, CopiesOfSweepsThatAreGoneGoBack) {
  ASSERT_TRUE(Run(TwoSweeps({4, 2, 1, 0.5f}, {4, 3, 1, 0.5f}), "age").ok());
  if (GetParam() == support::Device::kCpu) {
    EXPECT_EQ(copies_.most(), 0) << "there are none";
  } else {
    EXPECT_GT(copies_.most(), 0);
  }
  EXPECT_TRUE(copies_.AwaitNone());
}

TEST_P(EngineSweepsTest, RefusesWhatTheModelCannotRun) {
  const std::vector<float> point = {1, 2, 3, 0.5f};
  std::vector<float> four;
  for (int i = 0; i < 4; ++i) four.insert(four.end(), point.begin(), point.end());
  const auto too_many = Run(TwoSweeps(four, {1, 1, 1, 1, 2, 2, 2, 2}), "age");
  EXPECT_EQ(too_many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(too_many.status()), error_reason::kTooManyPoints);
  EXPECT_THAT(std::string(too_many.status().message()),
              HasSubstr("the 2 sweeps have 6 points; the limit of model \"sweeps\" is 5"));

  const auto unknown = Run(TwoSweeps(point, point), "dt");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(unknown.status()), error_reason::kBadSweeps);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("no feature \"dt\""));

  const auto no_age = Run(TwoSweeps(point, point), "");
  EXPECT_EQ(ReasonOf(no_age.status()), error_reason::kMissingField);
  EXPECT_THAT(std::string(no_age.status().message()), HasSubstr("lacks field age"));
}

}  // namespace
}  // namespace voxserve::engine_sweeps_test
