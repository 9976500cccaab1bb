// Tests the warm-up of a model, on the CPU and a GPU: it runs whatever the model's limits are, captures batches, and
// reports what failed.

#include "engine/serving/models/warm_up.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "tests/engine/device_runner.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/golden_scan.h"

namespace voxserve::warm_up_test {
namespace {

constexpr int kNumSizes = 12;

class WarmUpTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Warms up the demo's network. If has_range is true, its voxelize node has a range of one cubic metre.
  static absl::Status Run(const RunLimits& limits, int64_t max_points, bool has_range) {
    auto runner = *DeviceRunner::Create({.device = GetParam()});
    const auto model = LoadMinkUNetModel();
    EXPECT_TRUE(model.ok()) << model.status();
    Program program = *runner->Compile(model->graph, {.device = GetParam(), .plan = {}});
    program.voxelize.has_range = has_range;
    program.voxelize.range_min = {100, 100, 100, 0};
    program.voxelize.range_max = {101, 101, 101, 0};
    DeviceArbiter arbiter;
    MemoryModel memory;
    LatencyFit latency;
    const ContextRegistration registration(arbiter, runner->context().cuda.get());
    absl::Status status = WarmUp(program, {}, limits, max_points, arbiter, runner->executor(), memory, &latency);
    // The warm-up teaches how much memory its runs took. With max_voxels all its clouds are refused, so it teaches
    // nothing.
    EXPECT_EQ(memory.Expected(1000, 1000).points > 0, limits.max_voxels == 0);
    return status;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, WarmUpTest, support::AllDevices(), support::DeviceName);

TEST_P(WarmUpTest, RunsWhateverTheModelsLimitsAre) {
  EXPECT_TRUE(Run({}, 2000, false).ok());
  EXPECT_TRUE(Run({}, 1, false).ok());
  EXPECT_TRUE(Run({.max_voxels = 3}, 2000, false).ok());
  EXPECT_TRUE(Run({}, 2000, true).ok());
}

// Counts the successful runs of a first task that asks for a sample of farthest points, and notes which numbers of
// points were replayed.
class WatchedExecutor final : public Executor {
 public:
  explicit WatchedExecutor(Executor& executor) : executor_(executor) {}

  BatchReport Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override {
    BatchReport output = executor_.Run(program, tasks, limits, options);
    num_sampled += tasks[0]->sample && output.status.ok() && output.samples[0].status.ok();
    if (output.is_replay) replayed_sizes.insert(tasks[0]->cloud.num_points());
    return output;
  }
  int64_t allocated_bytes() const override { return executor_.allocated_bytes(); }

  int num_sampled = 0;
  std::set<uint64_t> replayed_sizes;

 private:
  Executor& executor_;
};

TEST_P(WarmUpTest, SamplesFarthestPointsWhereRequestsMay) {
  auto runner = *DeviceRunner::Create({.device = GetParam()});
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  Program program = *runner->Compile(model->graph, {.device = GetParam(), .plan = {}});
  DeviceArbiter arbiter;
  MemoryModel memory;
  const ContextRegistration registration(arbiter, runner->context().cuda.get());
  WatchedExecutor requests_may(runner->executor());
  EXPECT_TRUE(WarmUp(program, {}, {}, 2000, arbiter, requests_may, memory, nullptr).ok());
  EXPECT_EQ(requests_may.num_sampled, kNumSizes) << "one of each size";
  program.voxelize.sample = FarthestPoints{.num_points = 10};
  WatchedExecutor samples_itself(runner->executor());
  EXPECT_TRUE(WarmUp(program, {}, {}, 2000, arbiter, samples_itself, memory, nullptr).ok());
  EXPECT_EQ(samples_itself.num_sampled, 0);
}

TEST_P(WarmUpTest, RunsEachSizeUntilItIsReplayed) {
  if (GetParam() == support::Device::kCpu) GTEST_SKIP() << "the CPU captures nothing";
  if (!kCanCapture) GTEST_SKIP() << "a debug build captures nothing";
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  for (const bool captures : {false, true}) {
    SCOPED_TRACE(captures);
    auto runner = *DeviceRunner::Create({.device = GetParam()});
    const Program program = *runner->Compile(
        model->graph,
        {.device = GetParam(), .precision = ModelConfig::Precision::kFloat16, .plan = kDefaultCudaConvPlan});
    for (const RulebookForms& forms : program.default_plans.forms()) {
      if (forms.pairs) GTEST_SKIP() << "this GPU multiplies by pairs, whose numbers the host must know";
    }
    DeviceArbiter arbiter;
    MemoryModel memory;
    const ContextRegistration registration(arbiter, runner->context().cuda.get());
    WatchedExecutor watched(runner->executor());
    EXPECT_TRUE(WarmUp(program, {.captures = captures}, {}, 300'000, arbiter, watched, memory, nullptr).ok());
    EXPECT_EQ(watched.replayed_sizes.size(), captures ? size_t{kNumSizes} : 0u);
  }
}

TEST_P(WarmUpTest, SaysWhatFailed) {
  if (GetParam() == support::Device::kCpu) GTEST_SKIP() << "the CPU has no limit";
  auto runner = *DeviceRunner::Create({.device = GetParam(), .device_memory_limit = int64_t{96} << 20});
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const Program program = *runner->Compile(model->graph, {.device = GetParam(), .plan = {}});
  DeviceArbiter arbiter;
  MemoryModel memory;
  LatencyFit latency;
  const ContextRegistration registration(arbiter, runner->context().cuda.get());
  EXPECT_EQ(WarmUp(program, {}, {}, 1'000'000, arbiter, runner->executor(), memory, &latency).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace voxserve::warm_up_test
