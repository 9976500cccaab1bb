// Tests that a GPU answers a batch with the same bytes whether it captures and replays the batch as CUDA graphs or not.
// The tests vary scans, samples, outputs and plans. They also cover batches that do not fit the captured sizes, and a
// GPU without memory for graphs. The tests are small enough for compute-sanitizer.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor/captured_work.h"
#include "engine/executor/cuda_executor.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/core/clear.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/executor/small_minkunet_fixture.h"

namespace voxserve::captured_batches_cuda_test {
namespace {

class CapturedBatchesCudaTest : public SmallMinkUNetTest {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    if (!kCanCapture) GTEST_SKIP() << "a debug build waits after each launch";
    Start(/*budget_bytes=*/0);
  }

  BatchReport Run(const std::vector<const PointCloud*>& clouds, RunOptions options = {}, bool return_scores = true,
                  const RunLimits& limits = {}) {
    options.captures = true;
    return runner_->Run(program_, clouds, return_scores, limits, options);
  }
  BatchReport RunAsItIs(const std::vector<const PointCloud*>& clouds, const RunOptions& options = {},
                        bool return_scores = true, const RunLimits& limits = {}) {
    const BatchReport output = runner_->Run(program_, clouds, return_scores, limits, options);
    EXPECT_FALSE(output.is_replay);
    return output;
  }
  // Runs the batch until it is replayed. The first run learns sizes, and the batch is captured when its shape has come
  // often enough.
  BatchReport RunToReplay(const std::vector<const PointCloud*>& clouds, const RunOptions& options = {},
                          bool return_scores = true) {
    BatchReport output;
    for (int i = 0; i < 8 && !output.is_replay; ++i) output = Run(clouds, options, return_scores);
    EXPECT_TRUE(output.is_replay);
    return output;
  }
  const CapturedBatches& captured() const { return static_cast<const CudaExecutor&>(runner_->executor()).captured(); }
};

TEST_F(CapturedBatchesCudaTest, NothingIsCapturedWhereNobodyAsksForIt) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(RunAsItIs({&cloud}).status.ok());
  EXPECT_EQ(captured().num_shapes(), 0u);
}

TEST_F(CapturedBatchesCudaTest, AReplayGivesTheSameBytes) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  const BatchReport expected = RunAsItIs({&cloud});
  for (int i = 0; i < 6; ++i) ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({&cloud}), expected)) << i;
  EXPECT_GE(captured().num_captured(), 1u);
  EXPECT_TRUE(Run({&cloud}).is_replay);
}

// The replayed batches have other points, other numbers of points and other numbers of sites than the captured batch.
TEST_F(CapturedBatchesCudaTest, BatchesOfOneToFourScansThatDiffer) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int64_t> num_points(4600, 5400);
  std::uniform_real_distribution<float> metres(18, 20);
  int num_replays = 0;
  for (uint32_t batch = 0; batch < 80; ++batch) {
    SCOPED_TRACE(batch);
    std::vector<PointCloud> clouds;
    for (uint32_t i = 0; i <= batch % 4; ++i) {
      clouds.push_back(BoxOfPoints(num_points(random), metres(random), 10 * batch + i));
    }
    std::vector<const PointCloud*> together;
    for (const PointCloud& cloud : clouds) together.push_back(&cloud);
    const BatchReport output = Run(together);
    num_replays += output.is_replay ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunAsItIs(together)));
  }
  EXPECT_GT(num_replays, 30);
}

// The first sample of the later batches has no point, or only one.
TEST_F(CapturedBatchesCudaTest, ReplaysHaveSamplesWithoutPoints) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1), none = BoxOfPoints(0, 1, 1), one = BoxOfPoints(1, 1, 1);
  RunToReplay({&cloud, &cloud});
  for (const PointCloud* const other : {&none, &one}) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({other, &cloud}), RunAsItIs({other, &cloud})));
    }
  }
  ExpectSameBytes(Run({&cloud, &cloud}), RunAsItIs({&cloud, &cloud}));
}

// The second batch has as many points as the first, but they are in far more voxels. So the replay finds that its
// memory is too small for them.
TEST_F(CapturedBatchesCudaTest, AReplayThatDoesNotFitRunsAgain) {
  const PointCloud dense = BoxOfPoints(5000, 2, 1), scattered = BoxOfPoints(5000, 40, 2);
  const BatchReport replay = RunToReplay({&dense});
  const size_t num_shapes = captured().num_shapes();
  const BatchReport again = Run({&scattered});
  EXPECT_TRUE(again.ran_again);
  EXPECT_EQ(captured().num_shapes(), num_shapes) << "it was replayed at first";
  EXPECT_FALSE(again.is_replay);
  ExpectSameBytes(again, RunAsItIs({&scattered}));
  ExpectSameBytes(RunToReplay({&scattered}), RunAsItIs({&scattered}));
  ExpectSameBytes(replay, RunAsItIs({&dense}));
}

// Tests a batch that is captured although it has more sites than the memory that earlier batches suggested.
TEST_F(CapturedBatchesCudaTest, ABatchThatDoesNotFitMayBeTheOneThatIsCaptured) {
  const PointCloud dense = BoxOfPoints(5000, 2, 1), scattered = BoxOfPoints(5000, 40, 2);
  Run({&dense});  // this run learns the sizes
  Run({&dense});  // this run counts the shape as seen
  const BatchReport batch = Run({&scattered});
  EXPECT_TRUE(batch.ran_again);
  EXPECT_EQ(captured().num_captured(), 1u);
  ExpectSameBytes(batch, RunAsItIs({&scattered}));
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({&dense}), RunAsItIs({&dense}))) << i;
}

// Every third point has no voxel: it is not a number, or too far away.
TEST_F(CapturedBatchesCudaTest, ReplaysHavePointsWithoutAVoxel) {
  const auto cloud_with = [](uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> metres(-10, 10);
    std::vector<float> values;
    for (int i = 0; i < 5000; ++i) {
      const float bad = i % 3 != 0 ? metres(random) : i % 2 == 0 ? std::nanf("") : 1e9f;
      values.insert(values.end(), {bad, metres(random), 0.1f * metres(random), 0.5f});
    }
    return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), values.size() / 4);
  };
  const PointCloud first = cloud_with(1);
  RunToReplay({&first});
  for (uint32_t seed = 2; seed < 6; ++seed) {
    const PointCloud cloud = cloud_with(seed);
    const BatchReport output = Run({&cloud});
    EXPECT_TRUE(output.is_replay);
    EXPECT_GT(output.samples[0].counts.invalid, 0);
    EXPECT_GT(output.samples[0].counts.out_of_range, 0);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunAsItIs({&cloud})));
  }
}

TEST_F(CapturedBatchesCudaTest, BatchesThatSamplePointsAreNotCaptured) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  RunToReplay({&cloud}, {}, /*return_scores=*/false);
  const std::vector<InferTask> tasks = {{.cloud = cloud, .sample = FarthestPoints{.num_points = 64}}};
  for (int i = 0; i < 4; ++i) {
    const BatchReport output = runner_->Run(program_, tasks, {}, {.captures = true});
    EXPECT_FALSE(output.is_replay);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, runner_->Run(program_, tasks)));
  }
}

TEST_F(CapturedBatchesCudaTest, OutputsThatAreAskedForAreCapturedApart) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  RunToReplay({&cloud}, {}, /*return_scores=*/true);
  const BatchReport labels = RunToReplay({&cloud}, {}, /*return_scores=*/false);
  EXPECT_TRUE(labels.samples[0].scores().empty());
  ExpectSameBytes(labels, RunAsItIs({&cloud}, {}, /*return_scores=*/false));
  ExpectSameBytes(Run({&cloud}, {}, /*return_scores=*/true), RunAsItIs({&cloud}, {}, /*return_scores=*/true));
}

// A captured batch includes the step that makes labels. So a replay must write the ignore label of its own batch, not
// that of the captured batch.
TEST_F(CapturedBatchesCudaTest, TheIgnoreLabelIsThatOfTheBatch) {
  const float nan = std::nanf("");
  std::vector<float> values;
  for (int i = 0; i < 3000; ++i) {
    const auto at = static_cast<float>(i % 300);
    values.insert(values.end(), {0.3f * at, 0.3f * static_cast<float>(i / 300), 0, i == 7 ? nan : 0.5f});
  }
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), values.size() / 4);
  for (int i = 0; i < 4; ++i) {
    for (const int label : {255, 7}) {
      const RunLimits limits{.ignore_label = label};
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({&cloud}, {}, true, limits), RunAsItIs({&cloud}, {}, true, limits)));
    }
  }
}

TEST_F(CapturedBatchesCudaTest, TheVoxelLimitIsThatOfTheBatch) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  using Overflow = ModelConfig::VoxelOverflow;
  const std::vector<RunLimits> limits = {{.max_voxels = 1000, .voxel_overflow = Overflow::kNearestFirst},
                                         {.max_voxels = 1500, .voxel_overflow = Overflow::kNearestFirst},
                                         {.max_voxels = 1000, .voxel_overflow = Overflow::kReject},
                                         {}};
  int num_replays = 0;
  for (int i = 0; i < 6; ++i) {
    for (const RunLimits& limit : limits) {
      SCOPED_TRACE(limit.max_voxels);
      const BatchReport output = Run({&cloud}, {}, true, limit);
      num_replays += output.is_replay ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunAsItIs({&cloud}, {}, true, limit)));
    }
  }
  EXPECT_GT(num_replays, 6);
}

TEST_F(CapturedBatchesCudaTest, AReplayReportsItsStagesAndItsMemory) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  BatchReport captured;
  for (int i = 0; i < 8; ++i) {
    BatchReport output = Run({&cloud});
    if (!output.is_replay) {
      captured = std::move(output);
      continue;
    }
    ASSERT_EQ(output.stages.size(), captured.stages.size());
    for (size_t stage = 0; stage < output.stages.size(); ++stage) {
      EXPECT_EQ(output.stages[stage].stage, captured.stages[stage].stage);
      EXPECT_GT(output.stages[stage].duration, absl::ZeroDuration());
      EXPECT_LT(output.stages[stage].duration, absl::Seconds(1));
    }
    EXPECT_EQ(output.bytes.points, captured.bytes.points);
    EXPECT_EQ(output.bytes.features, captured.bytes.features);
    return;
  }
  FAIL() << "nothing was replayed";
}

// The memory of answers may be freed between batches, and taken again for others.
TEST_F(CapturedBatchesCudaTest, AnswersWhoseMemoryWasFreedAreNoTrouble) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1), small = BoxOfPoints(100, 20, 2);
  const BatchReport expected = RunToReplay({&cloud});
  for (int i = 0; i < 3; ++i) {
    runner_->context().cuda->download.Release();
    EXPECT_TRUE(RunAsItIs({&small}).status.ok());
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({&cloud}), expected));
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(RunToReplay({&cloud}), expected));
  }
}

TEST_F(CapturedBatchesCudaTest, AnotherGenerationOfPlansIsCapturedAnew) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  const Plan plan{.fallback = kDefaultCudaConvPlan};
  RunToReplay({&cloud});
  // Each generation has a new plan table, which may lie at the address of the one before.
  for (int generation = 0; generation < 4; ++generation) {
    const auto plans = std::make_unique<PlanTable>(program_, std::vector<PlanTable::Bucket>{{.plan = plan}});
    const RunOptions options{.plans = plans.get()};
    EXPECT_FALSE(Run({&cloud}, options).is_replay) << generation;
    ExpectSameBytes(RunToReplay({&cloud}, options), RunAsItIs({&cloud}, options));
  }
  EXPECT_TRUE(Run({&cloud}).is_replay) << "the first plan's is still there";
}

// Tests that the graphs of a new program are not mistaken for those of a deleted program.
TEST_F(CapturedBatchesCudaTest, AnotherProgramIsCapturedAnew) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  ExpectSameBytes(RunToReplay({&cloud}), RunAsItIs({&cloud}));
  program_ = Program();
  ASSERT_NO_FATAL_FAILURE(CompileInHalf(support::LoadNetwork(support::MinkUNet(
      {.width = 0.25, .num_classes = 7, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = 0.2f, .seed = 2}))));
  EXPECT_FALSE(Run({&cloud}).is_replay);
  ExpectSameBytes(RunToReplay({&cloud}), RunAsItIs({&cloud}));
}

TEST_F(CapturedBatchesCudaTest, ArenasThatMoveAreNoTrouble) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1), large = BoxOfPoints(400'000, 200, 2);
  const BatchReport expected = RunToReplay({&cloud});
  for (int i = 0; i < 3; ++i) {
    runner_->context().cuda->ReleaseArenas();
    if (i == 1) {
      EXPECT_TRUE(Run({&large}).status.ok());
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(Run({&cloud}), expected));
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(RunToReplay({&cloud}), expected));
  }
}

TEST_F(CapturedBatchesCudaTest, BatchesRunAsTheyAreWhereTheBudgetIsSpent) {
  Start(int64_t{64} << 20);
  if (HasFatalFailure()) return;
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  const BatchReport expected = RunAsItIs({&cloud});  // this run allocates the host memory that every run needs
  // Leaves only as much memory as an answer takes, which is less than a graph needs.
  const int64_t rest = budget_->limit_bytes() - budget_->held();
  const auto others = budget_->Reserve(MemoryBudget::Use::kModels, rest - (300 << 10));
  ASSERT_TRUE(others.ok()) << others.status();
  for (int i = 0; i < 6; ++i) {
    const BatchReport output = Run({&cloud}, {}, true);
    EXPECT_FALSE(output.is_replay);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, expected));
  }
  EXPECT_EQ(captured().num_captured(), 0u);
}

TEST_F(CapturedBatchesCudaTest, GraphsAreCountedInTheBudget) {
  const PointCloud cloud = BoxOfPoints(5000, 20, 1);
  RunToReplay({&cloud});
  EXPECT_GT(captured().bytes(), 0);
  EXPECT_GE(budget_->held(MemoryBudget::Use::kScratch), captured().bytes());
}

// ---- executor/captured_work.h

class CapturedWorkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    auto stream = Stream::CreateOn(0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_.emplace(*std::move(stream));
  }
  std::optional<Stream> stream_;
};

TEST_F(CapturedWorkTest, ACaptureThatWaitsEndsAndTheStreamGoesOn) {
  const auto work = CapturedWork::Capture(stream_->view(), [&] { return stream_->view().Synchronize(); });
  EXPECT_FALSE(work.ok());
  EXPECT_NE(work.status().message().find("cudaStreamSynchronize"), std::string::npos) << work.status();
  EXPECT_TRUE(stream_->view().Synchronize().ok());
  auto event = Event::Create();
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(event->Record(stream_->view()).ok());
  EXPECT_TRUE(event->Synchronize().ok());
}

// The events lie on both sides of work that takes some microseconds, in each run of the captured work.
TEST_F(CapturedWorkTest, EventsAreRecordedInEachRun) {
  auto pool = DevicePool::Create({});
  ASSERT_TRUE(pool.ok()) << pool.status();
  constexpr int64_t kBytes = int64_t{64} << 20;
  auto buffer = DeviceBuffer::Create(**pool, kBytes, stream_->view());
  auto begin = Event::Create(), end = Event::Create();
  ASSERT_TRUE(buffer.ok() && begin.ok() && end.ok());
  const auto work = CapturedWork::Capture(stream_->view(), [&] {
    absl::Status status = begin->Record(stream_->view());
    const auto clear = [&] {
      return CudaStatus(kernels::cuda::Clear(buffer->data(), kBytes, stream_->view().get()), "Clear");
    };
    for (int i = 0; i < 4; ++i) status.Update(clear());
    status.Update(end->Record(stream_->view()));
    status.Update(clear());
    return status;
  });
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ((*work)->num_nodes(), 7);
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE((*work)->Launch(stream_->view()).ok());
    ASSERT_TRUE(stream_->view().Synchronize().ok());
    const auto time = end->Since(*begin);
    ASSERT_TRUE(time.ok()) << time.status();
    EXPECT_GT(*time, absl::Microseconds(20));
    EXPECT_LT(*time, absl::Seconds(1));
  }
}

TEST_F(CapturedWorkTest, ACallersErrorComesFirst) {
  const auto work = CapturedWork::Capture(stream_->view(), [] { return absl::InternalError("of the caller"); });
  EXPECT_EQ(work.status(), absl::InternalError("of the caller"));
  EXPECT_TRUE(stream_->view().Synchronize().ok());
}

TEST_F(CapturedWorkTest, DeviceMemoryIsRefusedMeanwhile) {
  auto pool = DevicePool::Create({});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto work = CapturedWork::Capture(stream_->view(),
                                          [&] { return DeviceBuffer::Create(**pool, 1024, stream_->view()).status(); });
  EXPECT_NE(work.status().message().find("not allocated while"), std::string::npos) << work.status();
  EXPECT_EQ((*pool)->used_bytes(), 0);
  EXPECT_TRUE(DeviceBuffer::Create(**pool, 1024, stream_->view()).ok());
}

TEST_F(CapturedWorkTest, WorkOfNothingCanBeLaunched) {
  const auto work = CapturedWork::Capture(stream_->view(), [] { return absl::OkStatus(); });
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ((*work)->num_nodes(), 0);
  EXPECT_GT((*work)->bytes(), 0);
  EXPECT_TRUE((*work)->Launch(stream_->view()).ok());
  EXPECT_TRUE(stream_->view().Synchronize().ok());
}

}  // namespace
}  // namespace voxserve::captured_batches_cuda_test
