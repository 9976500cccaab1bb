// Runs networks that together have every operator. Expects the same bytes from batches that are captured and replayed
// as from batches that run without captures. This checks that what every step launches is right for other batches too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/operator_networks.h"
#include "tests/engine/executor/random_points.h"
#include "tests/engine/executor/same_bytes.h"

namespace voxserve::captured_operators_cuda_test {
namespace {

InferTask TaskOf(uint32_t seed, int num_points, const Program& program, bool asks_for_all) {
  const Points points = RandomScan(seed, num_points);
  return {.cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size()),
          .return_scores = asks_for_all && program.has_scores,
          .tensor_set = asks_for_all ? AllTensors(program.tensors.size()) : 0};
}

// Returns true if batches of the network can be captured whatever they ask for.
bool IsCapturable(const Program& program) {
  const std::vector<ConvPlan>& plans = program.default_plans.ForVoxels(0);
  return !program.voxelize.sample.has_value() &&
         std::none_of(program.steps.begin(), program.steps.end(),
                      [&](const std::unique_ptr<Step>& step) { return step->NeedsSizes(plans); });
}

TEST(CapturedOperatorsTest, ReplaysAreWhatTheirBatchesAreWithout) {
  SKIP_WITHOUT(support::Device::kCuda);
  auto runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  std::set<std::string> captured_networks;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    SCOPED_TRACE(network.name);
    const absl::StatusOr<Graph> graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto program = (*runner)->Compile(*graph, {.device = support::Device::kCuda,
                                                     .precision = ModelConfig::Precision::kFloat16,
                                                     .plan = kDefaultCudaConvPlan,
                                                     .is_deterministic = true});
    ASSERT_TRUE(program.ok()) << program.status();
    int num_replays = 0;
    // The clouds have five sizes. A batch has one cloud or two, and asks for all outputs or only for the default ones.
    for (uint32_t batch = 0; batch < 32; ++batch) {
      SCOPED_TRACE(batch);
      const bool asks_for_all = batch % 4 < 2;
      std::vector<InferTask> tasks;
      for (uint32_t i = 0; i <= batch % 2; ++i) {
        tasks.push_back(TaskOf(2 * batch + i, 250 + static_cast<int>(batch % 5), *program, asks_for_all));
      }
      const BatchReport output = (*runner)->Run(*program, tasks, {}, {.captures = true});
      num_replays += output.is_replay ? 1 : 0;
      const BatchReport expected = (*runner)->Run(*program, tasks);
      ASSERT_TRUE(expected.status.ok()) << expected.status;
      EXPECT_FALSE(expected.is_replay);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, expected));
    }
    if (!kCanCapture || !IsCapturable(*program)) continue;
    EXPECT_GT(num_replays, 10);
    captured_networks.insert(network.name);
  }
  if (!kCanCapture) return;
  // Among them are rows of points, prunes, attention, orders of sites and queries.
  EXPECT_THAT(captured_networks,
              ::testing::IsSupersetOf({"sites", "points", "pruned sites", "images", "attention", "groups", "positions",
                                       "rows", "detector of pillars", "detector of queries"}));
}

}  // namespace
}  // namespace voxserve::captured_operators_cuda_test
