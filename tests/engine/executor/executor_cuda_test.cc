// Tests the memory of a GPU's executor: it runs clouds from no point to two million points, stays within its limits,
// and leaks nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/executor/cuda_executor.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/program_fixture.h"

namespace voxserve::executor_cuda_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Returns points on a disc of ground around the sensor, as dense as those of a spinning LiDAR: a voxel holds one or two
// points.
PointCloud Ground(int64_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;
  const float radius = 0.03f * std::sqrt(static_cast<float>(num_points));
  for (int64_t i = 0; i < num_points; ++i) {
    const float r = radius * std::sqrt(unit(random)), angle = 6.2831853f * unit(random);
    values.insert(values.end(), {r * std::cos(angle), r * std::sin(angle), 0.1f * unit(random), unit(random)});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), static_cast<uint64_t>(num_points));
}

class CudaExecutorTest : public RunnerTest {
 protected:
  void SetUp() override { SKIP_WITHOUT(support::Device::kCuda); }

  void Start(int64_t device_memory_limit) {
    ASSERT_NO_FATAL_FAILURE(
        StartRunner({.device = support::Device::kCuda, .device_memory_limit = device_memory_limit}));
    const auto model = LoadMinkUNetModel();
    ASSERT_TRUE(model.ok()) << model.status();
    auto program =
        runner_->Compile(model->graph, {.precision = ModelConfig::Precision::kFloat16, .plan = kDefaultCudaConvPlan});
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
  }

  BatchReport Run(const PointCloud& cloud) { return runner_->Run(program_, {&cloud}, false); }
};

TEST_F(CudaExecutorTest, AnySizeFromNothingToTwoMillionPoints) {
  Start(0);
  for (const int64_t num_points : {0, 1, 2, 3, 33, 1000, 2'000'000, 7, 0}) {
    SCOPED_TRACE(num_points);
    const BatchReport output = Run(Ground(num_points, 5));
    ASSERT_TRUE(output.status.ok()) << output.status;
    ASSERT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
    EXPECT_EQ(output.samples[0].labels().size(), static_cast<size_t>(num_points));
    EXPECT_EQ(output.samples[0].counts.used, num_points);
    for (const uint8_t label : output.samples[0].labels()) ASSERT_LT(label, 12);
    EXPECT_FALSE(output.geometry_on_cpu);
  }
}

// Runs one convolution at a time by another dataflow that the device serves, and all others by the default. A failure
// thus names the convolution.
TEST_F(CudaExecutorTest, EachConvolutionGivesTheSameByEveryDataflow) {
  Start(0);
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok()) << scan.status();
  const auto scores_by = [&](const PlanTable& plans) {
    const BatchReport output = runner_->Run(program_, {&scan->cloud}, true, {}, {.plans = &plans});
    EXPECT_TRUE(output.status.ok()) << output.status;
    const absl::Span<const float> scores =
        output.samples.empty() ? absl::Span<const float>() : output.samples[0].scores();
    return std::vector<float>(scores.begin(), scores.end());
  };
  const std::vector<float> expected = scores_by(program_.default_plans);
  int num_others = 0;
  for (const ProgramConv& conv : program_.convs) {
    for (const ServedDataflow& served : conv.served) {
      std::vector<kernels::ConvBlock> blocks = {{}};
      if (served.blocks) blocks.insert(blocks.end(), served.blocks->begin(), served.blocks->end());
      for (const kernels::ConvBlock& block : blocks) {
        ConvPlan other = ByDataflow(kDefaultCudaConvPlan, served.dataflow);
        other.block = block;
        if (other == kDefaultCudaConvPlan) continue;
        ++num_others;
        const Plan plan{.fallback = kDefaultCudaConvPlan, .by_node = {{conv.node, other}}};
        const std::vector<float> scores = scores_by(PlanTable(program_, {{.plan = plan}}));
        ASSERT_EQ(scores.size(), expected.size());
        float largest_error = 0;
        for (size_t i = 0; i < scores.size(); ++i) {
          largest_error = std::max(largest_error, std::abs(scores[i] - expected[i]));
        }
        EXPECT_LE(largest_error, 0.2f) << conv.node << " by " << DataflowOf(served.dataflow).name() << ", "
                                       << Describe(block) << ", " << conv.in_channels << " -> " << conv.out_channels
                                       << " channels, rulebook " << conv.rulebook;
      }
    }
  }
  EXPECT_GT(num_others, 0);
}

TEST_F(CudaExecutorTest, ThousandScansOfChangingSizeLeaveThePoolWhereItWas) {
  Start(768 * kMiB);
  std::vector<PointCloud> clouds;
  for (const int64_t num_points : {20'000, 1, 60'000, 500, 0, 90'000, 7'000, 33'000}) {
    clouds.push_back(Ground(num_points, static_cast<uint32_t>(num_points)));
  }
  // In the first round over the clouds, the arena allocates several blocks. In the second round it replaces them by one
  // block.
  const auto warm_up = [&] {
    for (int i = 0; i < 16; ++i) ASSERT_TRUE(Run(clouds[static_cast<size_t>(i) % clouds.size()]).status.ok());
  };
  warm_up();
  const DevicePool& pool = *runner_->device().pool;
  const int64_t used = pool.used_bytes();
  ASSERT_TRUE(runner_->context().cuda->stream.view().Synchronize().ok());
  const auto reserved = pool.reserved_bytes();
  ASSERT_TRUE(reserved.ok());
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Run(clouds[static_cast<size_t>(i * 5) % clouds.size()]).status.ok()) << i;
  EXPECT_EQ(pool.used_bytes(), used);
  EXPECT_EQ(*pool.reserved_bytes(), *reserved);

  // A batch that runs out of memory half-way must not leave anything behind either.
  const PointCloud huge = Ground(3'000'000, 9);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ReasonOf(Run(huge).status), error_reason::kOutOfMemory);
    warm_up();
    EXPECT_EQ(pool.used_bytes(), used);
  }
}

TEST_F(CudaExecutorTest, SaysWhatABatchNeededWhateverTheContextKeeps) {
  Start(0);
  const PointCloud small = Ground(30'000, 1), large = Ground(300'000, 2);
  const BatchBytes before = Run(small).bytes;
  const BatchBytes most = Run(large).bytes;
  const BatchBytes after = Run(small).bytes;
  EXPECT_EQ(after.points, before.points);
  // The first run waited for its sizes, so it took exactly what it needed. The last run has memory for an eighth more
  // sites.
  EXPECT_GE(after.features, before.features);
  EXPECT_LT(after.features, before.features + before.features / 4);
  // The bytes must grow nearly in proportion to the points.
  EXPECT_GT(most.points, 8 * before.points);
  EXPECT_LT(most.points, 11 * before.points);
  EXPECT_GT(most.features, 5 * before.features);
  EXPECT_LE(most.total(), runner_->executor().allocated_bytes() + 2 * DeviceArena::kBlockBytes);
}

// Four points at each place are in the same voxels as one point, so the maps must not take more memory.
TEST_F(CudaExecutorTest, MapsTakeMemoryForTheirSitesNotForTheirPoints) {
  Start(0);
  for (const RulebookForms& forms : program_.default_plans.forms()) {
    if (forms.pairs) GTEST_SKIP() << "this GPU multiplies by pairs, whose numbers the host must know";
  }
  constexpr int64_t kNumPoints = 100'000;
  const PointCloud once = Ground(kNumPoints, 3);
  std::string bytes(once.bytes());
  for (int doubling = 0; doubling < 2; ++doubling) bytes += std::string(bytes);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const PointCloud four_times =
      *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), static_cast<uint64_t>(4 * kNumPoints));
  const BatchReport expected = Run(once), output = Run(four_times);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ASSERT_TRUE(output.status.ok()) << output.status;
  ASSERT_EQ(output.samples[0].counts.voxels, expected.samples[0].counts.voxels);
  EXPECT_GT(output.bytes.points, 3 * expected.bytes.points);
  EXPECT_LT(output.bytes.features, expected.bytes.features + expected.bytes.features / 10);
}

TEST_F(CudaExecutorTest, WhatDoesNotFitFailsAloneAndTheNextRequestSucceeds) {
  Start(192 * kMiB);
  const PointCloud small = Ground(5'000, 1), large = Ground(1'500'000, 2);
  const BatchReport before = Run(small);
  ASSERT_TRUE(before.status.ok()) << before.status;
  const BatchReport refused = Run(large);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted) << refused.status;
  EXPECT_EQ(ReasonOf(refused.status), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(refused.status.message()), testing::HasSubstr("bytes are in use"));
  const BatchReport after = Run(small);
  ASSERT_TRUE(after.status.ok()) << after.status;
  EXPECT_EQ(after.samples[0].labels(), before.samples[0].labels());
  EXPECT_LE(runner_->device().pool->used_bytes(), 192 * kMiB);
}

// Before the GPU knows the number of sites, it allocates memory for as many sites as there are points. A cloud with
// many points per voxel may therefore fit only if the CPU makes the maps, by the exact sizes.
TEST_F(CudaExecutorTest, MapsThatDoNotFitAreMadeOnTheCpuWithTheSameLabels) {
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok()) << scan.status();
  std::vector<float> points;
  for (int copy = 0; copy < 12; ++copy) points.insert(points.end(), scan->points.begin(), scan->points.end());
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), points.size() / 4);
  const InferTask input{.cloud = cloud, .sample = FarthestPoints{.num_points = 64, .seed = 1}};
  const auto run = [&] { return runner_->executor().Run(program_, input, {}, {}); };
  Start(0);
  const BatchReport expected = run();
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_FALSE(expected.geometry_on_cpu);
  bool fell_back = false;
  for (int64_t limit = 128 * kMiB; limit < 8192 * kMiB && !fell_back; limit += limit / 8) {
    Start(limit);
    if (HasFatalFailure()) return;
    const BatchReport output = run();
    if (!output.status.ok()) {
      ASSERT_EQ(ReasonOf(output.status), error_reason::kOutOfMemory) << output.status;
      continue;
    }
    ASSERT_TRUE(output.geometry_on_cpu) << "no limit was found under which the CPU has to help; last: " << limit;
    fell_back = true;
    EXPECT_EQ(output.samples[0].sampled_points.size(), 64u);
    EXPECT_EQ(output.samples[0].sampled_points, expected.samples[0].sampled_points);
    // The CPU orders the rows differently, so sums are rounded differently.
    int64_t different = 0;
    for (size_t i = 0; i < expected.samples[0].labels().size(); ++i) {
      different += output.samples[0].labels()[i] != expected.samples[0].labels()[i];
    }
    EXPECT_LE(different, static_cast<int64_t>(cloud.num_points()) / 1000);
  }
  EXPECT_TRUE(fell_back);
}

}  // namespace
}  // namespace voxserve::executor_cuda_test
