// Tests the guarantees of the executor for batches in which some samples are bad, on the CPU and a GPU.

#include "engine/executor/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/program_fixture.h"

namespace voxserve::executor_test {
namespace {

using testing::IsEmpty;

PointCloud Cloud(const std::vector<float>& xyzi) {
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, xyzi.data(), xyzi.size() / 4);
}

class ExecutorTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (runner_ == nullptr) return;
    const auto model = LoadMinkUNetModel();
    ASSERT_TRUE(model.ok()) << model.status();
    Compile(model->graph);
  }

  // Returns a real scan; on the CPU, which is slow, its first quarter, whose points are as dense.
  static PointCloud Scan() {
    const auto scan = LoadGoldenScan("pandaset_063");
    EXPECT_TRUE(scan.ok()) << scan.status();
    if (!scan.ok()) return Cloud({0, 0, 0, 0.1f});
    const int64_t num_points = GetParam() == support::Device::kCuda ? scan->num_points() : scan->num_points() / 4;
    return Cloud({scan->points.begin(), scan->points.begin() + 4 * num_points});
  }

  BatchReport Run(const std::vector<const PointCloud*>& clouds, const RunLimits& limits) {
    return runner_->Run(program_, clouds, true, limits);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, ExecutorTest, support::AllDevices(), support::DeviceName);

TEST_P(ExecutorTest, SeveralSamplesOfTooManyVoxelsTogetherFailAsAWhole) {
  const PointCloud two = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f});
  const PointCloud three = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f, 2, 0, 0, 0.3f});
  const RunLimits limits{.max_batch_voxels = 4};
  const BatchReport refused = Run({&two, &three}, limits);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kOutOfRange) << refused.status;
  EXPECT_THAT(refused.samples, IsEmpty());
  const BatchReport whole = Run({&two, &two}, limits);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(Run({&three}, {.max_batch_voxels = 2}).samples.at(0).labels().size(), 3u) << "one sample is its own batch";
  // On a GPU, some of the memory does not depend on the batch. On a CPU, all of it does.
  EXPECT_GT(whole.bytes.points, 0);
  EXPECT_GT(whole.bytes.features, 0);
  EXPECT_EQ(whole.bytes.fixed > 0, GetParam() == support::Device::kCuda);
}

TEST_P(ExecutorTest, BadSamplesDoNotChangeGoodOnes) {
  const PointCloud good = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f});
  const PointCloud large = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f, 2, 0, 0, 0.3f});
  const float xyz[] = {1, 2, 3};
  const PointCloud lacking = *PointCloud::FromFloats({"x", "y", "z"}, xyz, 1);
  const RunLimits limits{.max_voxels = 2};
  const BatchReport alone = Run({&good}, limits);
  const BatchReport batch = Run({&good, &lacking, &large, &good}, limits);
  ASSERT_TRUE(alone.status.ok() && batch.status.ok());
  ASSERT_EQ(batch.samples.size(), 4u);
  EXPECT_EQ(ReasonOf(batch.samples[1].status), error_reason::kMissingField);
  EXPECT_EQ(ReasonOf(batch.samples[2].status), error_reason::kTooManyVoxels);
  EXPECT_THAT(batch.samples[1].labels(), IsEmpty());
  EXPECT_THAT(batch.samples[2].scores(), IsEmpty());
  for (const size_t i : {0u, 3u}) {
    ASSERT_TRUE(batch.samples[i].status.ok()) << batch.samples[i].status;
    EXPECT_EQ(batch.samples[i].labels(), alone.samples[0].labels());
    for (size_t j = 0; j < alone.samples[0].scores().size(); ++j) {
      EXPECT_NEAR(batch.samples[i].scores()[j], alone.samples[0].scores()[j], 1e-4f);
    }
  }
}

TEST_P(ExecutorTest, RefusedCloudCostsNoNetwork) {
  const PointCloud large = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f});
  const BatchReport output = Run({&large}, {.max_voxels = 1});
  ASSERT_TRUE(output.status.ok());
  EXPECT_EQ(ReasonOf(output.samples[0].status), error_reason::kTooManyVoxels);
  for (const StageTime& time : output.stages) EXPECT_NE(time.stage, Stage::kFeatures);
}

// Returns a network that only makes coordinates: its kernel has 3 x 1 x 3 cells and stride 2 on the first axis. At the
// last coordinate of the last axis, it asks for one site that a key cannot hold.
Program HalvesTheFirstAxis() {
  Program program;
  program.voxelize.rounding = kernels::VoxelRounding::kFloor;
  program.voxelize.origin = kernels::VoxelOrigin::kZero;
  program.voxelize.axes = {"x", "y", "z"};
  program.levels.resize(2);
  program.levels[1].parent = 0;
  program.levels[1].from.rule = kernels::CoordinateRule::kExpand;
  program.levels[1].from.geometry = {.kernel_size = {3, 1, 3, 1}, .stride = {2, 1, 1, 1}, .padding = {1, 0, 1, 0}};
  program.segments = {{.levels = {1}}};
  return program;
}

TEST_P(ExecutorTest, CloudBeyondTheKeysLimitsIsRefusedAlone) {
  program_ = HalvesTheFirstAxis();
  const float last = static_cast<float>(kernels::CoordinateKey(3).max_coordinate());
  const PointCloud good = Cloud({0, 0, last - 1, 0.1f});
  const PointCloud beyond = Cloud({0, 0, last, 0.1f, 2, 0, 0, 0.1f});
  const BatchReport batch = Run({&good, &beyond, &good}, RunLimits());
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  EXPECT_TRUE(batch.samples[0].status.ok()) << batch.samples[0].status;
  EXPECT_TRUE(batch.samples[2].status.ok()) << batch.samples[2].status;
  EXPECT_EQ(batch.samples[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(batch.samples[1].status), error_reason::kCoordinateLimits);
  EXPECT_THAT(batch.samples[1].status.message(),
              testing::HasSubstr("asks 1 times for sites outside -130944 to 130943"));

  const BatchReport alone = Run({&beyond}, RunLimits());
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  EXPECT_EQ(ReasonOf(alone.samples[0].status), error_reason::kCoordinateLimits);
  for (const StageTime& time : alone.stages) EXPECT_NE(time.stage, Stage::kFeatures);
}

TEST_P(ExecutorTest, NoSampleAtAll) {
  const BatchReport output = Run({}, RunLimits());
  EXPECT_TRUE(output.status.ok()) << output.status;
  EXPECT_THAT(output.samples, IsEmpty());
}

TEST_P(ExecutorTest, MoreSamplesThanAKeyHoldsAreRefused) {
  const PointCloud one = Cloud({0, 0, 0, 0.1f});
  const std::vector<const PointCloud*> clouds(1025, &one);
  EXPECT_EQ(Run(clouds, RunLimits()).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ExecutorTest, MemoryIsKeptFromBatchToBatchAndNotMore) {
  const PointCloud scan = Scan();
  const PointCloud small = Cloud({0, 0, 0, 0.1f});
  // When the second batch begins, a GPU's arena replaces its several blocks by one.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Run({&scan}, RunLimits()).status.ok());
  const int64_t bytes = runner_->executor().allocated_bytes();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run({&small}, RunLimits()).status.ok());
  ASSERT_TRUE(Run({&scan}, RunLimits()).status.ok());
  // On a CPU, the heap's largest sum of bytes depends on the timing of the threads, so 2 MiB of difference are allowed.
  EXPECT_NEAR(static_cast<double>(runner_->executor().allocated_bytes()), static_cast<double>(bytes), 2 << 20);
}

// The plan depends on the number of voxels, and every plan must give the same labels.
TEST_P(ExecutorTest, EachSizeRunsByThePlanOfItsBucket) {
  const PointCloud scan = Scan();
  const BatchReport expected = Run({&scan}, {});
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  const bool on_cuda = GetParam() == support::Device::kCuda;
  ConvPlan other = on_cuda ? kDefaultCudaConvPlan : ConvPlan();
  other.map_search = kernels::MapSearch::kGrid;
  other.block.rows = on_cuda ? 0 : 64;
  other.grouping.grouping = kernels::Grouping::kSeparate;
  const int64_t voxels = expected.samples[0].counts.voxels;
  // If a plan asks for a grid and no bytes are allowed for it, a fallback is counted. This count shows which plan ran.
  const RunLimits limits{.max_grid_bytes = 0};
  const PlanTable other_above(program_,
                              {{.max_voxels = voxels, .plan = {.fallback = program_.default_plans.ForVoxels(0)[0]}},
                               {.min_voxels = voxels, .plan = {.fallback = other}}});
  const PlanTable other_below(
      program_, {{.max_voxels = voxels + 1, .plan = {.fallback = other}},
                 {.min_voxels = voxels + 1, .plan = {.fallback = program_.default_plans.ForVoxels(0)[0]}}});
  const PlanTable* const default_plans = &program_.default_plans;
  for (const PlanTable* plans : {&other_above, &other_below, default_plans}) {
    for (int run = 0; run < 2; ++run) {
      const BatchReport output = runner_->Run(program_, {&scan}, true, limits, {.plans = plans, .times_convs = true});
      ASSERT_TRUE(output.status.ok()) << output.status;
      if (!on_cuda) {
        EXPECT_EQ(output.grid_fallbacks > 0, plans != default_plans);
      }
      int64_t different = 0;
      for (size_t i = 0; i < expected.samples[0].labels().size(); ++i) {
        different += output.samples[0].labels()[i] != expected.samples[0].labels()[i];
      }
      EXPECT_LE(different, on_cuda ? 5 : 2);
      ASSERT_EQ(output.conv_times.size(), program_.convs.size());
      for (const absl::Duration time : output.conv_times) EXPECT_GT(time, absl::ZeroDuration());
      ASSERT_EQ(output.rulebook_sizes.size(), program_.rulebooks.size());
      EXPECT_EQ(output.rulebook_sizes[0].size(), 27u);
      EXPECT_EQ(output.rulebook_sizes[0][13], voxels);  // the centre cell of a submanifold kernel
    }
  }
  EXPECT_TRUE(Run({&scan}, {}).conv_times.empty());
}

}  // namespace
}  // namespace voxserve::executor_test
