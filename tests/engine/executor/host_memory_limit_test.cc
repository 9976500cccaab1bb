// Tests the executor of the CPU within a budget of the host's memory. The budget must count what batches really take. A
// batch that does not fit is refused before its memory is allocated, and leaves nothing behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/executor/executor.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/long_test.h"
#include "tests/support/real_scans.h"

namespace voxserve::host_memory_limit_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

PointCloud CloudOf(const std::vector<float>& xyzi) {
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, xyzi.data(), xyzi.size() / 4);
}

// Returns points far from each other: nearly every point has its own voxel, and no voxel has a neighbour.
PointCloud Scattered(int64_t num_points, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> metres(-400, 400);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(num_points) * 4);
  for (int64_t i = 0; i < num_points; ++i) {
    values.insert(values.end(), {metres(random), metres(random), metres(random), 0.5f});
  }
  return CloudOf(values);
}

// Returns the process's resident memory ("VmRSS"), or its peak since ResetPeak ("VmHWM").
int64_t ResidentNow(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != name + ":") continue;
    int64_t kib = 0;
    file >> kib;
    return kib * 1024;
  }
  return 0;
}

void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

class HostMemoryLimitTest : public ::testing::Test {
 protected:
  // If limit_bytes is 0, memory is counted but not limited.
  void Start(int64_t limit_bytes) {
    runner_.reset();
    budget_ = std::make_unique<MemoryBudget>(limit_bytes);
    auto runner = DeviceRunner::Create({.memory_budget = budget_.get()});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    if (program_ != nullptr) return;
    const auto model = LoadMinkUNetModel();
    ASSERT_TRUE(model.ok()) << model.status();
    auto program = runner_->Compile(model->graph, {});
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = std::make_unique<Program>(*std::move(program));
  }

  BatchReport Run(const std::vector<const PointCloud*>& clouds, bool return_scores = false) {
    return runner_->Run(*program_, clouds, return_scores);
  }

  const HostMemory& memory() { return *runner_->context().memory; }

  // Returns the peak of the memory that a batch needs in an empty context.
  int64_t PeakOf(const PointCloud& cloud) {
    runner_->executor().ReleaseHostMemory();
    EXPECT_TRUE(Run({&cloud}).status.ok());
    return memory().peak_bytes();
  }

  std::unique_ptr<MemoryBudget> budget_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<DeviceRunner> runner_;
};

struct MeasuredBatch {
  std::string name;
  std::function<absl::StatusOr<PointCloud>()> cloud;
  size_t num_samples = 1;
  bool return_scores = false;
  bool is_long = false;
};

absl::StatusOr<PointCloud> GoldenCloud() {
  absl::StatusOr<GoldenScan> scan = LoadGoldenScan("pandaset_070");
  if (!scan.ok()) return scan.status();
  return std::move(scan->cloud);
}

MeasuredBatch BatchOfScan(const std::string& name, const support::RealScan& scan) {
  return {.name = name, .cloud = [&scan] { return support::ReadScan(scan.format, scan.path()); }, .is_long = true};
}

class ReservedMemoryTest : public HostMemoryLimitTest, public testing::WithParamInterface<MeasuredBatch> {};
INSTANTIATE_TEST_SUITE_P(
    Batches, ReservedMemoryTest,
    testing::Values(MeasuredBatch{"Scan", GoldenCloud}, MeasuredBatch{"ScanWithScores", GoldenCloud, 1, true},
                    MeasuredBatch{"FourScans", GoldenCloud, 4, false, true},
                    MeasuredBatch{"FourOf15000Scattered", [] { return Scattered(15'000); }, 4},
                    MeasuredBatch{"20000Scattered", [] { return Scattered(20'000); }},
                    MeasuredBatch{"60000ScatteredWithScores", [] { return Scattered(60'000); }, 1, true},
                    MeasuredBatch{"200000Scattered", [] { return Scattered(200'000); }, 1, false, true},
                    MeasuredBatch{"200000ScatteredWithScores", [] { return Scattered(200'000); }, 1, true, true},
                    BatchOfScan("SemanticKitti", support::kSemanticKittiScan),
                    BatchOfScan("NuScenesSweeps", support::kNuScenesSweeps),
                    BatchOfScan("Waymo", support::kWaymoFrame)),
    [](const testing::TestParamInfo<MeasuredBatch>& tested) { return tested.param.name; });

TEST_P(ReservedMemoryTest, IsWhatTheBatchTakes) {
  if (GetParam().is_long) SKIP_UNLESS_LONG();
  const absl::StatusOr<PointCloud> cloud = GetParam().cloud();
  if (absl::IsNotFound(cloud.status())) GTEST_SKIP() << cloud.status();
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  Start(0);
  const PointCloud first = Scattered(20'000);
  ASSERT_TRUE(Run({&first}).status.ok());  // libraries allocate memory that they never free
  runner_->executor().ReleaseHostMemory();
  malloc_trim(0);
  ASSERT_EQ(budget_->held(), 0);
  const int64_t before = ResidentNow("VmRSS");
  ResetPeak();
  const BatchReport output =
      Run(std::vector<const PointCloud*>(GetParam().num_samples, &*cloud), GetParam().return_scores);
  const int64_t taken = ResidentNow("VmHWM") - before;
  ASSERT_TRUE(output.status.ok()) << output.status;
  int64_t reserved = memory().peak_bytes();
  for (const InferResult& sample : output.samples) {
    ASSERT_NE(sample.memory, nullptr);
    reserved += sample.memory->bytes();
  }
  std::printf("%.1f MiB reserved, %.1f MiB taken, ratio %.3f, predicted %.1f MiB\n",
              static_cast<double>(reserved) / kMiB, static_cast<double>(taken) / kMiB,
              static_cast<double>(reserved) / static_cast<double>(taken),
              static_cast<double>(output.bytes.total()) / kMiB);
  // The budget counts neither small tables nor the library's buffers.
  EXPECT_GE(reserved, taken - taken / 50 - 4 * kMiB);
  EXPECT_LE(reserved, taken + taken / 4 + 8 * kMiB) << "more is refused than need be";
  EXPECT_LE(output.bytes.total(), reserved);
  EXPECT_GE(output.bytes.total(), reserved / 2);
}

TEST_F(HostMemoryLimitTest, ABatchThatDoesNotFitIsRefusedAndLeavesNothing) {
  Start(0);
  const PointCloud small = Scattered(1'000), large = Scattered(60'000);
  const int64_t small_peak = PeakOf(small), large_peak = PeakOf(large);
  BatchReport expected = Run({&small});
  expected.samples[0].memory.reset();  // Start destroys the budget that counts it
  for (const int64_t limit : {small_peak + kMiB, (small_peak + large_peak) / 2, large_peak - 4 * kMiB}) {
    Start(limit);
    for (int i = 0; i < 2; ++i) {
      const BatchReport refused = Run({&large});
      EXPECT_TRUE(absl::IsResourceExhausted(refused.status)) << refused.status;
      EXPECT_EQ(ReasonOf(refused.status), error_reason::kOutOfMemory);
      EXPECT_THAT(std::string(refused.status.message()), HasSubstr("the batch does not fit into the host's memory: "));
      EXPECT_THAT(std::string(refused.status.message()), HasSubstr("--memory_limit"));
      EXPECT_TRUE(refused.host_is_full);
      EXPECT_TRUE(refused.samples.empty());
      EXPECT_EQ(budget_->held(), 0);
      const BatchReport served = Run({&small});
      ASSERT_TRUE(served.status.ok()) << served.status;
      EXPECT_EQ(served.samples[0].labels(), expected.samples[0].labels());
      EXPECT_LE(budget_->held(), limit);
    }
  }
}

TEST_F(HostMemoryLimitTest, TheSameBatchHoldsTheSameAndNothingAfterARelease) {
  Start(0);
  const PointCloud cloud = Scattered(30'000);
  ASSERT_TRUE(Run({&cloud}).status.ok());
  const int64_t held = budget_->held();
  EXPECT_GT(held, 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Run({&cloud}).status.ok());
    EXPECT_NEAR(budget_->held(), held, 2 * kMiB) << "but for the heap, where threads meet in different moments";
  }
  runner_->executor().ReleaseHostMemory();
  EXPECT_EQ(budget_->held(), 0);
}

TEST_F(HostMemoryLimitTest, ABatchNeedsTheSameWhateverRanBefore) {
  Start(0);
  const PointCloud small = Scattered(10'000), large = Scattered(40'000);
  const int64_t alone = Run({&small}).bytes.total();
  EXPECT_GT(alone, 20 * kMiB);
  EXPECT_GT(Run({&large}).bytes.total(), 2 * alone);
  EXPECT_NEAR(Run({&small}).bytes.total(), alone, alone / 10) << "but for what kernels free in another order";
}

TEST_F(HostMemoryLimitTest, WhatEarlierBatchesLeftIsNotInTheWay) {
  Start(0);
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok()) << scan.status();
  const PointCloud dense = CloudOf({scan->points.begin(), scan->points.begin() + 4 * (scan->num_points() / 4)});
  const PointCloud scattered = Scattered(15'000);
  // One cloud needs more memory than the other for rulebooks, and less for features.
  const int64_t limit = std::max(PeakOf(dense), PeakOf(scattered)) + 3 * kMiB;
  Start(limit);
  for (int i = 0; i < 2; ++i) {
    for (const PointCloud* cloud : {&scattered, &dense}) {
      const BatchReport output = Run({cloud});
      EXPECT_TRUE(output.status.ok()) << output.status;
    }
  }
}

TEST_F(HostMemoryLimitTest, ResultsCountForAsLongAsTheyAreThere) {
  Start(0);
  const PointCloud cloud = Scattered(30'000);
  BatchReport output = Run({&cloud}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  int64_t rows = 0;
  for (const NamedOutput& made : output.samples[0].outputs) rows += static_cast<int64_t>(made.bytes.size());
  EXPECT_EQ(output.samples[0].memory->bytes(), rows);
  runner_->executor().ReleaseHostMemory();
  EXPECT_EQ(budget_->held(), rows);
  output.samples.clear();
  EXPECT_EQ(budget_->held(), 0);
}

TEST_F(HostMemoryLimitTest, OthersTakeMemoryWhileABatchRuns) {
  Start(0);
  const PointCloud cloud = Scattered(60'000);
  const int64_t peak = PeakOf(cloud);
  Start(peak + 100 * kMiB);
  const auto others = budget_->Reserve(MemoryBudget::Use::kModels, 101 * kMiB + peak / 2);
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(ReasonOf(Run({&cloud}).status), error_reason::kOutOfMemory);
  EXPECT_EQ(budget_->held(), others->bytes());
}

TEST_F(HostMemoryLimitTest, RandomSizesNeverExceedASmallLimit) {
  Start(0);
  const int64_t limit = PeakOf(Scattered(7'000)) + kMiB;
  Start(limit);
  std::mt19937 random(7);
  int served = 0, refused = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<PointCloud> clouds;
    for (unsigned k = 0; k <= random() % 3; ++k) clouds.push_back(Scattered(1 + random() % 10'000, random()));
    std::vector<const PointCloud*> batch;
    for (const PointCloud& cloud : clouds) batch.push_back(&cloud);
    const BatchReport output = Run(batch, random() % 2 == 0);
    EXPECT_LE(budget_->held(), limit);
    EXPECT_LE(memory().peak_bytes(), limit);
    if (output.status.ok()) {
      ++served;
    } else {
      ++refused;
      EXPECT_EQ(ReasonOf(output.status), error_reason::kOutOfMemory) << output.status;
      EXPECT_EQ(budget_->held(), 0);
    }
  }
  EXPECT_GT(served, 5);
  EXPECT_GT(refused, 5);
  runner_->executor().ReleaseHostMemory();
  EXPECT_EQ(budget_->held(), 0);
}

}  // namespace
}  // namespace voxserve::host_memory_limit_test
