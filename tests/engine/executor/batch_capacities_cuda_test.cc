// Tests GPU batches that run within capacities: the executor lays out their memory by capacities that earlier batches
// suggest (engine/geometry/batch_capacities.h), before it knows the batch's sizes. The results must have the same bytes
// as when the host waits for the sizes. A batch that does not fit its capacities runs again.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor/cuda_executor.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/executor/small_minkunet_fixture.h"

namespace voxserve::batch_capacities_cuda_test {
namespace {

// Returns true if the last batch ran within capacities, and false if the host waited for its sizes.
bool RanWithinCapacities(DeviceRunner& runner) {
  return static_cast<const CudaExecutor&>(runner.executor()).geometry().has_capacities();
}

class BatchCapacitiesTest : public SmallMinkUNetTest {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    Start(/*budget_bytes=*/0);
  }

  BatchReport Run(const std::vector<const PointCloud*>& clouds, const RunLimits& limits = {}) {
    return runner_->Run(program_, clouds, /*return_scores=*/true, limits);
  }
  // Runs the batch without capacities: if convolutions are timed, the host waits for the batch's sizes.
  BatchReport RunWithSizes(const std::vector<const PointCloud*>& clouds, const RunLimits& limits = {}) {
    BatchReport output = runner_->Run(program_, clouds, /*return_scores=*/true, limits, {.times_convs = true});
    EXPECT_FALSE(RanWithinCapacities(*runner_));
    return output;
  }
  // Expects a batch to run again if its cloud has about as many sites as earlier ones, but its coordinates on one axis
  // need more bits than BatchCapacities::axis_bits.
  void ExpectFarBatchesRunAgain() {
    const PointCloud near = BoxOfPoints(4000, 15, 1);
    for (const size_t axis : {2, 0}) {
      SCOPED_TRACE(axis);
      std::vector<float> values;
      for (const float shift : {0.0f, 3000.0f}) {
        std::mt19937 random(1);
        std::uniform_real_distribution<float> unit(-0.5f, 0.5f);
        for (int i = 0; i < 2000; ++i) {
          values.insert(values.end(), {12 * unit(random), 12 * unit(random), 1.5f * unit(random), unit(random)});
          values[values.size() - 4 + axis] += shift;
        }
      }
      const PointCloud far = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), values.size() / 4);
      Run({&near});
      const BatchReport within_near_capacities = Run({&near});
      ASSERT_TRUE(RanWithinCapacities(*runner_));
      ExpectSameBytes(within_near_capacities, RunWithSizes({&near}));
      const BatchReport again = Run({&far});
      EXPECT_TRUE(again.ran_again);
      const BatchReport within_far_capacities = Run({&far});
      EXPECT_FALSE(within_far_capacities.ran_again);
      EXPECT_TRUE(RanWithinCapacities(*runner_));
      ExpectSameBytes(again, RunWithSizes({&far}));
      ExpectSameBytes(within_far_capacities, again);
    }
  }
};

TEST_F(BatchCapacitiesTest, ABatchThatDoesNotFitRunsAgain) {
  const PointCloud dense = BoxOfPoints(5000, 1, 1), scattered = BoxOfPoints(5000, 40, 2);
  EXPECT_FALSE(Run({&dense}).ran_again);
  EXPECT_FALSE(RanWithinCapacities(*runner_)) << "nothing is known of the first";
  const BatchReport within_capacities = Run({&dense});
  EXPECT_TRUE(RanWithinCapacities(*runner_));
  EXPECT_FALSE(within_capacities.ran_again);
  const BatchReport overflown = Run({&scattered});
  EXPECT_TRUE(overflown.ran_again);
  EXPECT_FALSE(RanWithinCapacities(*runner_));
  const BatchReport again = Run({&scattered});
  EXPECT_TRUE(RanWithinCapacities(*runner_));
  EXPECT_FALSE(again.ran_again);
  ExpectSameBytes(within_capacities, RunWithSizes({&dense}));
  const BatchReport expected = RunWithSizes({&scattered});
  ASSERT_GT(expected.samples[0].counts.voxels, 4 * within_capacities.samples[0].counts.voxels);
  ExpectSameBytes(overflown, expected);
  ExpectSameBytes(again, expected);
}

TEST_F(BatchCapacitiesTest, BatchesOfAllDensitiesAreWhatTheyAreWithSizes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> size(1, 4);
  std::uniform_real_distribution<double> log_points(0, 4.3), log_metres(-0.5, 2);
  int num_again = 0, num_within_capacities = 0;
  for (uint32_t batch = 0; batch < 120; ++batch) {
    SCOPED_TRACE(batch);
    const double metres = std::pow(10, log_metres(random));
    std::vector<PointCloud> clouds;
    for (int64_t i = size(random); i > 0; --i) {
      const auto num_points = static_cast<int64_t>(std::pow(10, log_points(random)));
      clouds.push_back(BoxOfPoints(num_points, static_cast<float>(metres), 10 * batch + static_cast<uint32_t>(i)));
    }
    std::vector<const PointCloud*> together;
    for (const PointCloud& cloud : clouds) together.push_back(&cloud);
    const BatchReport output = Run(together);
    num_again += output.ran_again ? 1 : 0;
    num_within_capacities += RanWithinCapacities(*runner_) ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunWithSizes(together)));
  }
  EXPECT_GT(num_again, 3);
  EXPECT_GT(num_within_capacities, 40);
}

TEST_F(BatchCapacitiesTest, SamplesAndBatchesBeyondLimitsAreRefusedAlike) {
  const PointCloud few = BoxOfPoints(2000, 2, 1), many = BoxOfPoints(2000, 30, 2);
  EXPECT_TRUE(Run({&few, &many}).status.ok());
  const RunLimits samples{.max_voxels = 1000};
  const BatchReport refused = Run({&few, &many}, samples);
  EXPECT_TRUE(RanWithinCapacities(*runner_));
  EXPECT_TRUE(refused.samples[0].status.ok()) << refused.samples[0].status;
  EXPECT_TRUE(absl::IsInvalidArgument(refused.samples[1].status)) << refused.samples[1].status;
  ExpectSameBytes(refused, RunWithSizes({&few, &many}, samples));
  const BatchReport only = Run({&many}, samples);
  EXPECT_FALSE(only.samples[0].status.ok());
  ExpectSameBytes(only, RunWithSizes({&many}, samples));
  // The capacity for voxels is clamped to the limit. A batch with exactly as many voxels as the limit still runs in
  // capacities.
  const auto voxels = static_cast<int64_t>(RunWithSizes({&few, &many}).samples[0].counts.voxels +
                                           RunWithSizes({&few, &many}).samples[1].counts.voxels);
  EXPECT_TRUE(Run({&few, &many}, {.max_batch_voxels = voxels}).status.ok());
  EXPECT_TRUE(RanWithinCapacities(*runner_));
  const RunLimits batches{.max_batch_voxels = 1000};
  const BatchReport too_large = Run({&few, &many}, batches);
  EXPECT_TRUE(absl::IsOutOfRange(too_large.status)) << too_large.status;
  EXPECT_TRUE(Run({&few, &many}).status.ok()) << "and the next one is served";
}

TEST_F(BatchCapacitiesTest, ABatchThatReachesFartherRunsAgain) { ExpectFarBatchesRunAgain(); }

// In capacities, the coarser levels of this network can be made with bitmaps; with sizes, they are sorted.
TEST_F(BatchCapacitiesTest, ABatchBeyondItsBitmapsRunsAgain) {
  ASSERT_NO_FATAL_FAILURE(CompileInHalf(support::LoadNetwork(
      support::SparseResNet21D({.width = 0.25, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = 0.2f}))));
  ExpectFarBatchesRunAgain();
}

// One plan is for few voxels and one for many. Both clouds have the same number of points, but their numbers of voxels
// need different plans.
TEST_F(BatchCapacitiesTest, BatchesOnBothSidesOfAPlansBorderWaitForTheirSizes) {
  const PointCloud dense = BoxOfPoints(5000, 4, 1), scattered = BoxOfPoints(5000, 30, 2);
  const int64_t few = RunWithSizes({&dense}).samples[0].counts.voxels;
  const int64_t many = RunWithSizes({&scattered}).samples[0].counts.voxels;
  ASSERT_LT(2 * few, many);
  const int64_t border = (few + many) / 2;
  const Plan plan = {.fallback = program_.default_plans.ForVoxels(0)[0]};
  const PlanTable plans(program_, {{.max_voxels = border, .plan = plan}, {.min_voxels = border, .plan = plan}});
  const auto run = [&](const PointCloud& cloud) {
    return runner_->Run(program_, {&cloud}, /*return_scores=*/true, {}, {.plans = &plans});
  };
  int num_again = 0;
  for (int i = 0; i < 10; ++i) {
    for (const PointCloud* const cloud : {&dense, &scattered}) {
      const BatchReport output = run(*cloud);
      num_again += output.ran_again ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunWithSizes({cloud})));
    }
  }
  EXPECT_LE(num_again, 1);
}

// ---- networks that prune

// Returns a network that keeps the voxels whose mean intensity is above 0, and convolves them, coarser ones made of
// them, and all voxels.
support::TestModel PruningNetwork() {
  support::TestModel model;
  model.graph = R"(
nodes { name: "voxels" voxelize { voxel_size: [0.2, 0.2, 0.2] rounding: ROUNDING_FLOOR origin: ORIGIN_ZERO
                                  reduce: REDUCE_MEAN features { name: "x" } features { name: "intensity" } } }
nodes { name: "score" inputs: "voxels" linear { out_channels: 1 } }
nodes { name: "kept" inputs: ["voxels", "score"] prune { threshold: 0 } }
nodes { name: "near" inputs: "kept" sparse_conv { kind: KIND_SUBMANIFOLD kernel_size: [3, 3, 3] out_channels: 8 } }
nodes { name: "down" inputs: "near" sparse_conv { kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: [2, 2, 2]
                                                  stride: [2, 2, 2] out_channels: 8 } }
nodes { name: "up" inputs: "down" sparse_conv { kind: KIND_INVERSE paired_with: "down" out_channels: 8 } }
nodes { name: "head" inputs: "up" sparse_conv { kind: KIND_STRIDED sites_of: "voxels" kernel_size: [3, 3, 3]
                                                out_channels: 4 } }
nodes { name: "best" inputs: "head" argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["head", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" } outputs { kind: KIND_SCORES node: "scores" })";
  std::mt19937 random(1);
  std::uniform_real_distribution<float> weight(-0.2f, 0.2f);
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
           {"near", {27, 2, 8}}, {"down", {8, 8, 8}}, {"up", {8, 8, 8}}, {"head", {27, 8, 4}}}) {
    std::vector<float> values(static_cast<size_t>(shape[0] * shape[1] * shape[2]));
    for (float& value : values) value = weight(random);
    model.weights[name + ".weight"] = support::FloatTensor(shape, values);
  }
  model.weights["score.weight"] = support::FloatTensor({1, 2}, {0, 1});
  return model;
}

// Returns points spread evenly over a box of `size` by `size` by 0.1 `size` metres. This share of them has an intensity
// above 0. The same seed gives the same positions.
PointCloud BoxToPrune(int64_t num_points, float size, double share, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-0.5f, 0.5f), positive(0, 1);
  std::vector<float> values;
  for (int64_t i = 0; i < num_points; ++i) {
    const float place[3] = {size * unit(random), size * unit(random), 0.1f * size * unit(random)};
    const bool is_kept = positive(random) < share;
    values.insert(values.end(), {place[0], place[1], place[2], is_kept ? 0.5f : -0.5f});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), values.size() / 4);
}

// captures: RunOptions::captures.
class PrunedCapacitiesTest : public RunnerTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    if (captures() && !kCanCapture) GTEST_SKIP() << "a debug build waits after each launch";
    ASSERT_NO_FATAL_FAILURE(StartRunner({.device = support::Device::kCuda}, std::make_unique<MemoryBudget>(0)));
    ASSERT_NO_FATAL_FAILURE(CompileInHalf(LoadTestGraph(PruningNetwork())));
    EXPECT_EQ(program_.segments.size(), 2u);
  }

  bool captures() const { return GetParam(); }
  BatchReport Run(const std::vector<const PointCloud*>& clouds, const RunLimits& limits = {}) {
    return runner_->Run(program_, clouds, /*return_scores=*/true, limits, {.captures = captures()});
  }
  BatchReport RunWithSizes(const std::vector<const PointCloud*>& clouds) {
    BatchReport output = runner_->Run(program_, clouds, /*return_scores=*/true, {}, {.times_convs = true});
    EXPECT_FALSE(RanWithinCapacities(*runner_));
    return output;
  }
  // Runs the batch until it runs as a batch of a warm server does: within capacities, or as a replay.
  void WarmUp(const std::vector<const PointCloud*>& clouds) {
    BatchReport output = Run(clouds);
    for (int i = 0; i < 8 && !(captures() ? output.is_replay : RanWithinCapacities(*runner_)); ++i)
      output = Run(clouds);
    EXPECT_TRUE(RanWithinCapacities(*runner_));
    EXPECT_EQ(output.is_replay, captures());
    ExpectSameBytes(output, RunWithSizes(clouds));
  }
  // Expects that the cloud does not fit its capacities, and fits them when it comes again.
  void ExpectRunsAgainOnce(const PointCloud& cloud) {
    const BatchReport again = Run({&cloud});
    EXPECT_TRUE(again.ran_again);
    const BatchReport within_capacities = Run({&cloud});
    EXPECT_FALSE(within_capacities.ran_again);
    EXPECT_TRUE(RanWithinCapacities(*runner_));
    ExpectSameBytes(again, RunWithSizes({&cloud}));
    ExpectSameBytes(within_capacities, again);
  }
};
INSTANTIATE_TEST_SUITE_P(Captures, PrunedCapacitiesTest, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "Captured" : "Plain"); });

// Both clouds have the same voxels, but the network keeps few of the first's and all of the second's.
TEST_P(PrunedCapacitiesTest, ABatchThatKeepsMoreSitesRunsAgain) {
  const PointCloud few = BoxToPrune(4000, 20, 0.1, 1), all = BoxToPrune(4000, 20, 1, 1);
  WarmUp({&few});
  ExpectRunsAgainOnce(all);
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(Run({&few}).ran_again);
  EXPECT_FALSE(Run({&all}).ran_again) << "a network may keep many sites after it has kept few for long";
  ExpectSameBytes(Run({&few}), RunWithSizes({&few}));
}

// The scattered cloud has too many voxels for the capacities, but few that the network keeps: the levels behind the
// prune would fit, and must have no sites, since the ones before it have none.
TEST_P(PrunedCapacitiesTest, ABatchWithMoreVoxelsRunsAgain) {
  const PointCloud dense = BoxToPrune(4000, 3, 1, 1), scattered = BoxToPrune(4000, 40, 0.02, 2);
  WarmUp({&dense});
  ExpectRunsAgainOnce(scattered);
  ExpectSameBytes(Run({&dense}), RunWithSizes({&dense}));
}

// A sample that is refused has no answer, but the next batch like it must still fit its capacities.
TEST_P(PrunedCapacitiesTest, ABatchThatIsRefusedIsLearned) {
  const PointCloud dense = BoxToPrune(4000, 3, 1, 1), scattered = BoxToPrune(4000, 40, 0.02, 2);
  WarmUp({&dense});
  const RunLimits limits{.max_voxels = 3000};
  for (const bool is_first : {true, false}) {
    const BatchReport output = Run({&scattered}, limits);
    EXPECT_EQ(output.ran_again, is_first);
    ASSERT_EQ(output.samples.size(), 1u);
    EXPECT_TRUE(absl::IsInvalidArgument(output.samples[0].status)) << output.samples[0].status;
  }
}

TEST_P(PrunedCapacitiesTest, BatchesThatKeepAnyShareAreWhatTheyAreWithSizes) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int64_t> num_points(3800, 4000);
  int num_again = 0, num_within_capacities = 0, num_replays = 0;
  for (uint32_t batch = 0; batch < 60; ++batch) {
    SCOPED_TRACE(batch);
    // From nothing to everything and back.
    const double share = 0.5 - 0.5 * std::cos(0.2 * batch);
    const PointCloud first = BoxToPrune(num_points(random), 20, share, 2 * batch);
    const PointCloud second = BoxToPrune(num_points(random), 20, batch % 7 == 0 ? 0 : share, 2 * batch + 1);
    const std::vector<const PointCloud*> clouds = batch % 3 == 0 ? std::vector{&first, &second} : std::vector{&first};
    const BatchReport output = Run(clouds);
    num_again += output.ran_again ? 1 : 0;
    num_within_capacities += RanWithinCapacities(*runner_) ? 1 : 0;
    num_replays += output.is_replay ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunWithSizes(clouds)));
  }
  EXPECT_GT(num_again, 0);
  EXPECT_GT(num_within_capacities, 20);
  EXPECT_EQ(num_replays > 10, captures()) << num_replays;
}

}  // namespace
}  // namespace voxserve::batch_capacities_cuda_test
