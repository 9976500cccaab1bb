// What the executor promises about batches whose samples are not all good.

#include "engine/graph/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/golden_scan.h"

namespace voxserve {
namespace {

using testing::IsEmpty;

PointCloud Cloud(const std::vector<float>& xyzi) {
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, xyzi.data(), xyzi.size() / 4);
}

class ExecutorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto program = LoadMinkUNet();
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
  }

  BatchOutput Run(const std::vector<const PointCloud*>& clouds, const RunLimits& limits) {
    std::vector<SampleInput> inputs;
    for (const PointCloud* cloud : clouds) inputs.push_back({.cloud = cloud, .return_scores = true});
    return executor_.Run(program_, inputs, limits);
  }

  Program program_;
  kernels::ThreadPool pool_{2};
  ExecutionContext context_{.device = "cpu", .pool = &pool_};
  Executor executor_{&context_};
};

TEST_F(ExecutorTest, BadSamplesDoNotChangeGoodOnes) {
  const PointCloud good = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f});
  const PointCloud large = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f, 2, 0, 0, 0.3f});
  const float xyz[] = {1, 2, 3};
  const PointCloud lacking = *PointCloud::FromFloats({"x", "y", "z"}, xyz, 1);
  const RunLimits limits{.max_voxels = 2};
  const BatchOutput alone = Run({&good}, limits);
  const BatchOutput batch = Run({&good, &lacking, &large, &good}, limits);
  ASSERT_TRUE(alone.status.ok() && batch.status.ok());
  ASSERT_EQ(batch.samples.size(), 4u);
  EXPECT_EQ(ReasonOf(batch.samples[1].status), error_reason::kMissingField);
  EXPECT_EQ(ReasonOf(batch.samples[2].status), error_reason::kTooManyVoxels);
  EXPECT_THAT(batch.samples[1].labels, IsEmpty());
  EXPECT_THAT(batch.samples[2].scores, IsEmpty());
  for (const size_t i : {0u, 3u}) {
    ASSERT_TRUE(batch.samples[i].status.ok()) << batch.samples[i].status;
    EXPECT_EQ(batch.samples[i].labels, alone.samples[0].labels);
    for (size_t j = 0; j < alone.samples[0].scores.size(); ++j) {
      EXPECT_NEAR(batch.samples[i].scores[j], alone.samples[0].scores[j], 1e-4f);
    }
  }
}

TEST_F(ExecutorTest, RefusedCloudCostsNoNetwork) {
  const PointCloud large = Cloud({0, 0, 0, 0.1f, 1, 0, 0, 0.2f});
  const BatchOutput output = Run({&large}, {.max_voxels = 1});
  ASSERT_TRUE(output.status.ok());
  EXPECT_EQ(ReasonOf(output.samples[0].status), error_reason::kTooManyVoxels);
  for (const StageTime& stage : output.stages) EXPECT_NE(stage.name, "features");
}

TEST_F(ExecutorTest, NoSampleAtAll) {
  const BatchOutput output = Run({}, RunLimits());
  EXPECT_TRUE(output.status.ok()) << output.status;
  EXPECT_THAT(output.samples, IsEmpty());
}

TEST_F(ExecutorTest, MoreSamplesThanAKeyHoldsAreRefused) {
  const PointCloud one = Cloud({0, 0, 0, 0.1f});
  const std::vector<const PointCloud*> clouds(1025, &one);
  EXPECT_EQ(Run(clouds, RunLimits()).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExecutorTest, MemoryIsKeptFromBatchToBatchAndNotMore) {
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok()) << scan.status();
  const PointCloud small = Cloud({0, 0, 0, 0.1f});
  ASSERT_TRUE(Run({&scan->cloud}, RunLimits()).status.ok());
  const int64_t bytes = executor_.allocated_bytes();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Run({&small}, RunLimits()).status.ok());
  ASSERT_TRUE(Run({&scan->cloud}, RunLimits()).status.ok());
  EXPECT_EQ(executor_.allocated_bytes(), bytes);
}

}  // namespace
}  // namespace voxserve
