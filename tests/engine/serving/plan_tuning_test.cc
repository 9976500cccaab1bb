// Tests that a running engine searches plans on the scans of its requests, keeps the plans, and finds them after a
// restart.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/serving/streams/sweep_history.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/test_device.h"

namespace voxserve::plan_tuning_test {
namespace {

using testing::HasSubstr;

class PlanTuningTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    const auto scan = LoadGoldenScan("pandaset_063");
    ASSERT_TRUE(scan.ok()) << scan.status();
    for (const int64_t num_points : {400, 900}) {
      clouds_.push_back(Cloud({scan->points.begin(), scan->points.begin() + num_points * 4}));
    }
  }
  void TearDown() override { std::filesystem::remove_all(plan_dir_); }

  std::unique_ptr<Engine> Start() {
    return MakeEngine({.model_repository = Models(),
                       .num_threads = 2,
                       .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0",
                       .plan_dir = plan_dir_.string(),
                       .engine_version = "test"});
  }

  static std::string PlanSource(Engine& engine) { return engine.GetModel("minkunet", 0)->plan_source; }

  // Starts a search, and serves `clouds` for it.
  static std::future<absl::StatusOr<TuneResult>> Tune(Engine& engine, TuneTask task,
                                                      const std::vector<PointCloud>& clouds) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<TuneResult>>>();
    task.done = [promise](absl::StatusOr<TuneResult> result) { promise->set_value(std::move(result)); };
    engine.Tune(std::move(task));
    for (const PointCloud& cloud : clouds) EXPECT_TRUE(Infer(engine, {.model = "minkunet", .cloud = cloud}).ok());
    return promise->get_future();
  }

  std::filesystem::path plan_dir_ =
      std::filesystem::temp_directory_path() / absl::StrCat("voxserve_plan_tuning_test_", getpid());
  std::vector<PointCloud> clouds_;
};

INSTANTIATE_TEST_SUITE_P(Devices, PlanTuningTest, support::AllDevices(), support::DeviceName);

TEST_P(PlanTuningTest, APlanIsSearchedSwappedInKeptAndFoundAgain) {
  const auto engine = Start();
  EXPECT_EQ(PlanSource(*engine), "default");
  const auto before = Infer(*engine, {.model = "minkunet", .cloud = clouds_[0]});
  ASSERT_TRUE(before.ok()) << before.status();
  double fraction = 0;
  int num_updates = 0;
  const auto result = Tune(*engine,
                           {.model = "minkunet",
                            .num_scans = 2,
                            .on_progress =
                                [&](const TuneProgress& progress) {
                                  EXPECT_GE(progress.fraction, fraction);
                                  EXPECT_LE(progress.fraction, 1);
                                  fraction = progress.fraction;
                                  ++num_updates;
                                }},
                           clouds_)
                          .get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(num_updates, 1);
  EXPECT_EQ(result->num_scans, 2);
  ASSERT_FALSE(result->buckets.empty());
  EXPECT_GT(result->buckets[0].tuned_time, absl::ZeroDuration());
  EXPECT_TRUE(std::filesystem::is_regular_file(result->path)) << result->path;
  EXPECT_THAT(result->path, HasSubstr(plan_dir_.string()));
  EXPECT_EQ(PlanSource(*engine), "tuned");
  const auto after = Infer(*engine, {.model = "minkunet", .cloud = clouds_[0]});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->labels().size(), before->labels().size());
  if (GetParam() == support::Device::kCpu) {
    EXPECT_EQ(after->labels(), before->labels());
  }

  EXPECT_EQ(PlanSource(*Start()), "plan_dir");
  std::ofstream(result->path) << "rubbish";
  EXPECT_EQ(PlanSource(*Start()), "default");
}

TEST_P(PlanTuningTest, SweepsThatRunTogetherAreAScanOfASearch) {
  const auto engine = Start();
  std::weak_ptr<const Sweep> older;
  std::promise<absl::StatusOr<TuneResult>> answer;
  std::atomic<uint64_t> ticket{0};
  bool has_run = false, was_kept = false;
  ticket = engine->Tune({.model = "minkunet",
                         .num_scans = 1,
                         .on_progress =
                             [&](const TuneProgress& progress) {
                               // In every stage but these two, the scan has been run.
                               if (progress.stage == "waiting for scans" || progress.stage == "sizes") return;
                               has_run = true;
                               was_kept = !older.expired();
                               engine->CancelTune(ticket);
                             },
                         .done = [&](absl::StatusOr<TuneResult> result) { answer.set_value(std::move(result)); }});
  {
    SweepHistory history({.num_sweeps = 2});
    ASSERT_TRUE(history.Add(clouds_[0], {}, absl::UnixEpoch()).ok());
    auto sweeps = history.Add(clouds_[1], {.x = 1}, absl::UnixEpoch() + absl::Milliseconds(100));
    ASSERT_TRUE(sweeps.ok()) << sweeps.status();
    older = sweeps->back().sweep;
    const auto result = Infer(*engine, {.model = "minkunet", .cloud = clouds_[1], .sweeps = *std::move(sweeps)});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->labels().size(), 900u);
  }
  EXPECT_EQ(answer.get_future().get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(has_run);
  EXPECT_TRUE(was_kept) << "the search ran the newest sweep alone";
}

TEST_P(PlanTuningTest, WrongTasksAreRefused) {
  const auto engine = Start();
  EXPECT_EQ(Tune(*engine, {.model = "nothing"}, {}).get().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Tune(*engine, {.model = "minkunet", .version = 7}, {}).get().status().code(), absl::StatusCode::kNotFound);
  for (const int num_scans : {0, -1, 101}) {
    EXPECT_EQ(Tune(*engine, {.model = "minkunet", .num_scans = num_scans}, {}).get().status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const auto no_scan = Tune(*engine, {.model = "minkunet", .max_wait = absl::ZeroDuration()}, {}).get();
  EXPECT_EQ(no_scan.status().code(), absl::StatusCode::kDeadlineExceeded) << no_scan.status();
}

TEST_P(PlanTuningTest, OneSearchAModelAtATimeAndCancelEndsIt) {
  const auto engine = Start();
  std::promise<absl::StatusOr<TuneResult>> first;
  const uint64_t ticket = engine->Tune(
      {.model = "minkunet", .max_wait = absl::InfiniteDuration(), .done = [&](absl::StatusOr<TuneResult> result) {
         first.set_value(std::move(result));
       }});
  const auto second = Tune(*engine, {.model = "minkunet"}, {}).get();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(second.status()), error_reason::kAlreadyTuning);
  engine->CancelTune(ticket);
  EXPECT_EQ(first.get_future().get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(PlanSource(*engine), "default");
}

TEST_P(PlanTuningTest, DrainEndsSearches) {
  const auto engine = Start();
  auto waiting = Tune(*engine, {.model = "minkunet", .max_wait = absl::InfiniteDuration()}, {});
  engine->Drain();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kCancelled);
  const auto late = Tune(*engine, {.model = "minkunet"}, {}).get();
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(late.status()), error_reason::kDraining);
}

}  // namespace
}  // namespace voxserve::plan_tuning_test
