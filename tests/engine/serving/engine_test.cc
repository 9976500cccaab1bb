// Tests the engine through its public interface, with the demo's model and with repositories that the tests make.

#include "engine/serving/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/test_device.h"

namespace voxserve::engine_test {
namespace {

using testing::Each;
using testing::HasSubstr;

class EngineTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  static Engine::Options Options(const std::string& repository) {
    return {.model_repository = repository, .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0"};
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineTest, support::AllDevices(), support::DeviceName);

TEST(EngineOptionsTest, BadOptionsAreNamed) {
  EXPECT_THAT(std::string(Engine::Create({}).status().message()), HasSubstr("model_repository"));
  EXPECT_THAT(std::string(Engine::Create({.model_repository = Models(), .num_threads = -1}).status().message()),
              HasSubstr("num_threads"));
  EXPECT_THAT(std::string(Engine::Create({.model_repository = Models(), .max_queue_requests = 0}).status().message()),
              HasSubstr("max_queue_requests"));
  EXPECT_THAT(std::string(Engine::Create({.model_repository = Models(), .streams_per_device = 0}).status().message()),
              HasSubstr("streams_per_device"));
  EXPECT_THAT(std::string(Engine::Create({.model_repository = Models(), .device_memory_limit = -1}).status().message()),
              HasSubstr("device_memory_limit"));
  EXPECT_EQ(Engine::Create({.model_repository = "/no/such/folder"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(EngineOptionsTest, TimesOfStuckBatchesAreNamed) {
  const auto error_of = [](absl::Duration time, double factor) {
    const auto engine =
        Engine::Create({.model_repository = Models(), .stuck_batch_time = time, .stuck_batch_factor = factor});
    return std::string(engine.status().message());
  };
  EXPECT_THAT(error_of(absl::ZeroDuration(), 1), HasSubstr("stuck_batch_time is 0"));
  EXPECT_THAT(error_of(absl::Seconds(1), -0.5), HasSubstr("stuck_batch_factor is -0.5"));
  EXPECT_THAT(error_of(absl::Seconds(1), std::nan("")), HasSubstr("stuck_batch_factor is nan"));
}

TEST_P(EngineTest, ABatchBeyondItsTimeIsReportedAndAWarmUpIsNot) {
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok());
  std::atomic<int> num_stuck{0};
  Engine::Options options = Options(Models());
  options.stuck_batch_time = absl::Milliseconds(1);
  options.stuck_batch_factor = 0;
  options.on_batch_stuck = [&] { ++num_stuck; };
  const auto engine = MakeEngine(options);
  EXPECT_EQ(num_stuck, 0) << "loading took far longer";
  for (int i = 0; i < 1000 && num_stuck == 0; ++i) {  // on a GPU, a batch may end before the watchdog looks
    const auto result = Infer(*engine, {.model = "minkunet", .cloud = scan->cloud});
    ASSERT_TRUE(result.ok()) << result.status();
  }
  EXPECT_GT(num_stuck, 0);
}

TEST_P(EngineTest, WithoutATimeNoBatchIsStuck) {
  std::atomic<int> num_stuck{0};
  Engine::Options options = Options(Models());
  options.stuck_batch_time = absl::InfiniteDuration();
  options.stuck_batch_factor = 0;
  options.on_batch_stuck = [&] { ++num_stuck; };
  const auto engine = MakeEngine(options);
  EXPECT_TRUE(Infer(*engine, {.model = "minkunet", .cloud = Cloud({0, 0, 0, 0.5f})}).ok());
  EXPECT_EQ(num_stuck, 0);
}

TEST_P(EngineTest, LabelsAGoldenScanAndTimesItsStages) {
  const auto engine = MakeEngine(Options(Models()));
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok()) << scan.status();
  const auto result = Infer(*engine, {.model = "minkunet", .cloud = scan->cloud});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->model, "minkunet");
  EXPECT_EQ(result->version, 1);
  EXPECT_EQ(result->device, engine->devices());
  EXPECT_EQ(result->device, GetParam() == support::Device::kCpu ? "cpu" : "cuda:0");
  EXPECT_EQ(result->Find(NamedOutput::kLabels)->dtype, DType::kUint8);
  EXPECT_TRUE(result->scores().empty());
  ASSERT_EQ(result->labels().size(), scan->labels.size());
  int64_t different = 0;
  for (size_t i = 0; i < scan->labels.size(); ++i) different += result->labels()[i] != scan->labels[i] ? 1 : 0;
  EXPECT_LE(different, 10);  // their two best logits are nearly equal; golden_test.cc is stricter
  std::vector<std::string> stages;
  for (const StageTime& time : result->stages) stages.emplace_back(NameOf(time.stage));
  std::vector<std::string> expected = {"queue", "copy_in", "voxelize", "geometry", "features", "head"};
  if (GetParam() == support::Device::kCuda) expected.push_back("copy_out");
  EXPECT_EQ(stages, expected);
}

// A GPU's engine makes page-locked memory for clouds of this size within a second after the first such cloud. A CPU
// needs none.
TEST_P(EngineTest, AllocatesCloudsThatGiveTheSameAnswer) {
  MemoryBudget budget;
  Engine::Options options = Options(Models());
  options.memory_budget = &budget;
  const auto engine = MakeEngine(options);
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok()) << scan.status();
  const auto allocate = [&] {
    absl::StatusOr<HostBuffer> buffer =
        engine->AllocateCloud(static_cast<int64_t>(scan->cloud.bytes().size()), BufferLife::kRequest);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  };
  const auto expected = Infer(*engine, {.model = "minkunet", .cloud = scan->cloud});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const bool is_gpu = GetParam() == support::Device::kCuda;
  HostBuffer buffer = allocate();
  EXPECT_FALSE(buffer.is_pinned());
  for (int i = 0; i < 100 && is_gpu && !buffer.is_pinned(); ++i) {
    absl::SleepFor(absl::Milliseconds(100));
    buffer = HostBuffer();
    buffer = allocate();
  }
  EXPECT_EQ(buffer.is_pinned(), is_gpu);
  EXPECT_EQ(budget.held(MemoryBudget::Use::kPinned) > 0, is_gpu);
  buffer.Write(0, scan->cloud.bytes());
  buffer.FinishWrites();
  const auto cloud = PointCloud::Create(scan->cloud.layout(), std::move(buffer));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  const auto result = Infer(*engine, {.model = "minkunet", .cloud = *cloud});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->labels(), expected->labels());
}

TEST_P(EngineTest, PointsThatAreNoNumbersOrTooFarGetTheIgnoreLabelAndTheRestIsServed) {
  const auto engine = MakeEngine(Options(Models()));
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> good = {1, 2, 3, 0.5f, 1.2f, 2, 3, 0.5f};
  const std::vector<float> mixed = {nan, 2,   3, 0.5f, 1,    2, 3, 0.5f, 1e9f, 0, 0, 0.5f,
                                    1,   inf, 3, 0.5f, 1.2f, 2, 3, 0.5f, 1,    2, 3, nan};
  const auto expected = Infer(*engine, {.model = "minkunet", .cloud = Cloud(good), .return_scores = true});
  const auto result = Infer(*engine, {.model = "minkunet", .cloud = Cloud(mixed), .return_scores = true});
  ASSERT_TRUE(result.ok() && expected.ok()) << result.status();
  EXPECT_EQ(result->counts.used, 2);
  EXPECT_EQ(result->counts.invalid, 3);
  EXPECT_EQ(result->counts.out_of_range, 1);
  EXPECT_EQ(result->counts.voxels, 2);
  EXPECT_THAT(result->labels(), testing::ElementsAre(255, expected->labels()[0], 255, 255, expected->labels()[1], 255));
  for (const size_t ignored : {0u, 2u, 3u, 5u}) {
    const std::vector<float> row(result->scores().begin() + static_cast<int64_t>(ignored) * 12,
                                 result->scores().begin() + static_cast<int64_t>(ignored + 1) * 12);
    EXPECT_THAT(row, Each(0.0f));
  }
}

TEST_P(EngineTest, EmptyCloudsGetEmptyAnswers) {
  const auto engine = MakeEngine(Options(Models()));
  const auto none = Infer(*engine, {.model = "minkunet", .cloud = Cloud({})});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->labels().empty());
  const auto all_far = Infer(*engine, {.model = "minkunet", .cloud = Cloud({1e9f, 0, 0, 0.5f})});
  ASSERT_TRUE(all_far.ok()) << all_far.status();
  EXPECT_THAT(all_far->labels(), testing::ElementsAre(255));
  EXPECT_EQ(all_far->counts.out_of_range, 1);
}

TEST_P(EngineTest, RefusesWhatTheModelCannotTake) {
  Repository repository;
  repository.CopyMinkUNet("small", 1);
  repository.Write("small/config.textproto", "max_points: 2 max_voxels: 1");
  const auto engine = MakeEngine(Options(repository.path()));

  const auto too_many = Infer(*engine, {.model = "small", .cloud = Cloud(std::vector<float>(12, 0.5f))});
  EXPECT_EQ(ReasonOf(too_many.status()), error_reason::kTooManyPoints);
  EXPECT_THAT(std::string(too_many.status().message()), HasSubstr("3 points; the limit of model \"small\" is 2"));

  const auto voxels = Infer(*engine, {.model = "small", .cloud = Cloud({0, 0, 0, 0.5f, 1, 1, 1, 0.5f})});
  EXPECT_EQ(ReasonOf(voxels.status()), error_reason::kTooManyVoxels);
  EXPECT_THAT(std::string(voxels.status().message()), HasSubstr("2 voxels; the model's limit is 1"));

  const float xyz[] = {1, 2, 3};
  const auto lacking = Infer(*engine, {.model = "small", .cloud = *PointCloud::FromFloats({"x", "y", "ring"}, xyz, 1)});
  EXPECT_EQ(ReasonOf(lacking.status()), error_reason::kMissingField);
  EXPECT_THAT(std::string(lacking.status().message()), HasSubstr("lacks fields z, intensity"));
  EXPECT_THAT(std::string(lacking.status().message()), HasSubstr("it has x, y, ring"));

  InferTask late{.model = "small", .cloud = Cloud({0, 0, 0, 0.5f})};
  late.deadline = absl::Now() - absl::Seconds(1);
  EXPECT_EQ(Infer(*engine, std::move(late)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(EngineTest, NearestFirstDropsTheFarthestVoxelsAndSaysHowMany) {
  Repository repository;
  repository.CopyMinkUNet("near", 1);
  repository.Write("near/config.textproto",
                   "max_voxels: 2 voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_NEAREST_FIRST ignore_label: 200");
  const auto engine = MakeEngine(Options(repository.path()));
  const auto result = Infer(
      *engine, {.model = "near", .cloud = Cloud({50, 0, 0, 0.5f, 1, 0, 0, 0.5f, 50, 0, 0, 0.1f, -2, 0, 0, 0.5f})});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->counts.dropped, 2);
  EXPECT_EQ(result->counts.used, 2);
  EXPECT_EQ(result->labels()[0], 200);
  EXPECT_EQ(result->labels()[2], 200);
  EXPECT_LT(result->labels()[1], 12);
  EXPECT_LT(result->labels()[3], 12);
}

TEST_P(EngineTest, FirstSeenDropsTheVoxelsThatComeLast) {
  Repository repository;
  repository.CopyMinkUNet("first", 1);
  repository.Write("first/config.textproto",
                   "max_voxels: 2 voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_FIRST_SEEN ignore_label: 200");
  const auto engine = MakeEngine(Options(repository.path()));
  const auto result = Infer(
      *engine, {.model = "first", .cloud = Cloud({50, 0, 0, 0.5f, 7, 0, 0, 0.5f, 1, 0, 0, 0.5f, 50, 0, 0, 0.1f})});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->counts.dropped, 1);
  EXPECT_EQ(result->counts.used, 3);
  EXPECT_EQ(result->labels()[2], 200);
  for (const size_t kept : {0u, 1u, 3u}) EXPECT_LT(result->labels()[kept], 12) << kept;
}

TEST_P(EngineTest, BrokenVersionIsListedWithItsProblemsAndTheGoodOneServes) {
  Repository repository;
  repository.CopyMinkUNet("m", 1);
  repository.Write("m/2/model.textproto", "nodes { name: \"a\" bogus {} }");
  const auto engine = MakeEngine(Options(repository.path()));
  EXPECT_EQ(Infer(*engine, {.model = "m", .cloud = Cloud({0, 0, 0, 0.5f})})->version, 1);
  const auto broken = engine->GetModel("m", 2);
  ASSERT_TRUE(broken.ok());
  EXPECT_EQ(broken->state, ModelState::kFailed);
  EXPECT_FALSE(broken->problems.empty());
  EXPECT_EQ(Infer(*engine, {.model = "m", .version = 2, .cloud = Cloud({0, 0, 0, 0.5f})}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine->ListModels().size(), 2u);
}

class QueueTimes final : public EngineObserver {
 public:
  void OnStage(std::string_view, Stage stage, absl::Duration duration) override {
    if (stage != Stage::kQueue) return;
    absl::MutexLock lock(&mutex_);
    last_ = duration;
  }
  absl::Duration last() const {
    absl::MutexLock lock(&mutex_);
    return last_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Duration last_ ABSL_GUARDED_BY(mutex_);
};

TEST_P(EngineTest, WhatATaskWaitedBeforeItCameIsTimeInTheQueue) {
  QueueTimes times;
  Engine::Options options = Options(Models());
  options.observer = &times;
  const auto engine = MakeEngine(options);
  for (const bool has_waited : {false, true}) {
    InferTask task{.model = "minkunet", .cloud = Cloud({0, 0, 0, 0.5f})};
    if (has_waited) task.arrived = absl::Now() - absl::Hours(1);
    const auto result = Infer(*engine, std::move(task));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->stages[0].stage, Stage::kQueue);
    EXPECT_EQ(result->stages[0].duration >= absl::Hours(1), has_waited) << result->stages[0].duration;
    EXPECT_EQ(times.last(), result->stages[0].duration);
  }
}

TEST_P(EngineTest, DescribesTheModel) {
  const auto engine = MakeEngine(Options(Models()));
  const auto info = engine->GetModel("minkunet", 0);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->num_parameters, 5441036);
  ASSERT_EQ(info->classes.size(), 12u);
  EXPECT_EQ(info->classes[5].name, "car");
  EXPECT_EQ(info->classes[5].color_rgb, 0x285affu);
  ASSERT_EQ(info->features.size(), 4u);
  EXPECT_EQ(info->features[3].name, "intensity");
  EXPECT_THAT(info->voxel_size, Each(0.05f));
  EXPECT_EQ(info->digest.size(), 64u);
}

TEST_P(EngineTest, QueueIsBoundedCancelledTasksLeaveItAndDrainAnswersTheRest) {
  Engine::Options options = Options(Models());
  options.num_threads = options.streams_per_device = 1;
  options.max_queue_requests = 3;
  const auto engine = MakeEngine(std::move(options));
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok());
  std::atomic<int> ok{0}, full{0}, cancelled{0}, other{0};
  std::vector<uint64_t> tickets;
  constexpr int kNumTasks = 24;  // more than the queue and the worker's batches hold
  for (int i = 0; i < kNumTasks; ++i) {
    tickets.push_back(
        engine->Submit({.model = "minkunet", .cloud = scan->cloud, .done = [&](absl::StatusOr<InferResult> result) {
                          if (result.ok()) {
                            ++ok;
                          } else if (ReasonOf(result.status()) == error_reason::kQueueFull) {
                            ++full;
                          } else if (absl::IsCancelled(result.status())) {
                            ++cancelled;
                          } else {
                            ++other;
                          }
                        }}));
  }
  EXPECT_GE(full, 4);
  int num_cancelled = 0;
  for (const uint64_t ticket : tickets) num_cancelled += engine->Cancel(ticket) ? 1 : 0;
  EXPECT_EQ(cancelled, num_cancelled);
  engine->Drain();
  EXPECT_EQ(ok + full + cancelled, kNumTasks);
  EXPECT_EQ(other, 0);
  const auto refused = Infer(*engine, {.model = "minkunet", .cloud = Cloud({0, 0, 0, 0.5f})});
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kDraining);
}

// Several contexts of a GPU run tasks of many sizes side by side. Each task must get the labels that it gets alone.
TEST_P(EngineTest, ManyTasksAtOnceGetTheLabelsThatEachGetsAlone) {
  Engine::Options options = Options(Models());
  options.streams_per_device = 3;
  const auto engine = MakeEngine(std::move(options));
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok());
  std::vector<PointCloud> clouds = {Cloud({}), Cloud({1, 2, 3, 0.5f})};
  for (const size_t num_points : {1000u, 20'000u, 50'000u}) {
    clouds.push_back(
        Cloud(std::vector<float>(scan->points.begin(), scan->points.begin() + static_cast<int64_t>(num_points * 4))));
  }
  std::vector<InferResult> alone;
  for (const PointCloud& cloud : clouds) alone.push_back(*Infer(*engine, {.model = "minkunet", .cloud = cloud}));
  const int rounds = GetParam() == support::Device::kCpu ? 1 : 20;
  std::atomic<int> equal{0};
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < clouds.size(); ++i) {
      engine->Submit(
          {.model = "minkunet", .cloud = clouds[i], .done = [&equal, &alone, i](absl::StatusOr<InferResult> result) {
             if (result.ok() && result->labels() == alone[i].labels()) ++equal;
           }});
    }
  }
  engine->Drain();
  EXPECT_EQ(equal, rounds * static_cast<int>(clouds.size()));
}

// If a request needs more memory than the device has, it fails with its reason, and the next request is served.
TEST(EngineMemoryCudaTest, RequestBeyondTheDevicesLimitFailsAlone) {
  SKIP_WITHOUT(support::Device::kCuda);
  Repository repository;  // no other model takes memory
  repository.CopyMinkUNet("minkunet", 1);
  const auto engine = MakeEngine({.model_repository = repository.path(),
                                  .devices = "cuda:0",
                                  .streams_per_device = 1,
                                  .device_memory_limit = int64_t{80} << 20});
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok());
  const auto refused = Infer(*engine, {.model = "minkunet", .cloud = scan->cloud});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kOutOfMemory);
  const auto served = Infer(*engine, {.model = "minkunet", .cloud = Cloud({0, 0, 0, 0.5f, 1, 0, 0, 0.5f})});
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->labels().size(), 2u);
}

class BatchObserver final : public EngineObserver {
 public:
  void OnBatch(std::string_view, int64_t requests, int64_t, int64_t) override {
    absl::MutexLock lock(&mutex_);
    requests_.push_back(requests);
  }
  // The engine calls this for batches that ran whole, not in parts.
  void OnPrediction(std::string_view, absl::Duration, absl::Duration) override { ++num_whole; }
  void OnGeometryFallback() override { ++num_geometry_fallbacks; }
  std::vector<int64_t> requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  std::atomic<int64_t> num_whole{0};
  std::atomic<int64_t> num_geometry_fallbacks{0};

 private:
  absl::Mutex mutex_;
  std::vector<int64_t> requests_ ABSL_GUARDED_BY(mutex_);
};

TEST(EngineMemoryCudaTest, BatchesAreAsLargeAsALimitAllows) {
  SKIP_WITHOUT(support::Device::kCuda);
  constexpr int kRequests = 24;
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok());
  Repository repository;
  repository.CopyMinkUNet("m", 1);
  repository.Write("m/config.textproto", "batching { max_batch_points: 1000000000 max_batch_requests: 64 }");
  BatchObserver observer;
  int64_t limit = int64_t{128} << 20;
  const auto make_engine = [&] {
    return MakeEngine({.model_repository = repository.path(),
                       .max_grid_bytes = 0,
                       .devices = "cuda:0",
                       .streams_per_device = 1,
                       .device_memory_limit = limit,
                       .observer = &observer});
  };
  bool fits = false;  // whether one scan fits, with maps made on the GPU
  for (; !fits; limit += limit / 8) {
    ASSERT_LT(limit, int64_t{8} << 30);
    observer.num_geometry_fallbacks = 0;
    fits = Infer(*make_engine(), {.model = "m", .cloud = scan->cloud}).ok() && observer.num_geometry_fallbacks == 0;
  }
  limit *= 4;
  const auto before = static_cast<int64_t>(observer.requests().size());
  observer.num_whole = 0;
  const auto engine = make_engine();
  ASSERT_TRUE(Infer(*engine, {.model = "m", .cloud = scan->cloud}).ok());
  // The first request holds the worker up until all others wait.
  absl::Notification all_are_there;
  std::atomic<int> num_served{0};
  engine->Submit({.model = "m", .cloud = Cloud({0, 0, 0, 0.5f}), .done = [&](const absl::StatusOr<InferResult>&) {
                    all_are_there.WaitForNotification();
                  }});
  for (int i = 0; i < kRequests; ++i) {
    engine->Submit({.model = "m", .cloud = scan->cloud, .done = [&](const absl::StatusOr<InferResult>& result) {
                      num_served += result.ok();
                    }});
  }
  all_are_there.Notify();
  engine->Drain();
  EXPECT_EQ(num_served, kRequests);
  const std::vector<int64_t> requests = observer.requests();
  const int64_t largest = *std::max_element(requests.begin() + before, requests.end());
  EXPECT_GE(largest, 2);
  EXPECT_LT(largest, kRequests / 2) << "16 and more do not fit";
  EXPECT_EQ(observer.num_whole, static_cast<int64_t>(requests.size()) - before) << "none had to be run in parts";
}

// The memory that the context of one GPU stream keeps for its batches must not be missing for the other context.
TEST(EngineMemoryCudaTest, StreamsShareALimitThatOneBatchAtATimeKeeps) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok());
  Repository repository;  // no other model takes memory
  repository.CopyMinkUNet("minkunet", 1);
  int64_t limit = int64_t{128} << 20;
  const auto make_engine = [&](int num_streams) {
    return MakeEngine({.model_repository = repository.path(),
                       .devices = "cuda:0",
                       .streams_per_device = num_streams,
                       .device_memory_limit = limit});
  };
  absl::StatusOr<InferResult> alone = absl::UnknownError("not run");
  for (; !alone.ok(); limit += limit / 8) {
    ASSERT_LT(limit, int64_t{8} << 30) << alone.status();
    alone = Infer(*make_engine(1), {.model = "minkunet", .cloud = scan->cloud});
  }
  limit += limit / 4;  // for the workspace of the second stream
  const auto engine = make_engine(2);
  std::atomic<int> num_served{0}, num_refused{0};
  for (int i = 0; i < 8; ++i) {
    engine->Submit({.model = "minkunet", .cloud = scan->cloud, .done = [&](const absl::StatusOr<InferResult>& result) {
                      ++(result.ok() ? num_served : num_refused);
                    }});
  }
  engine->Drain();
  EXPECT_EQ(num_served, 8);
  EXPECT_EQ(num_refused, 0);
}

}  // namespace
}  // namespace voxserve::engine_test
