// Pooling in whole networks: its rulebooks, alone and shared with convolutions, on both devices.

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/graph/program_comparison.h"

namespace voxserve {
namespace {

using kernels::CoordinateRule;
using kernels::PoolReduce;

constexpr PoolReduce kReduces[] = {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum};
constexpr CoordinateRule kRules[] = {CoordinateRule::kFloor, CoordinateRule::kPadded, CoordinateRule::kExpand};

class PoolingTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, PoolingTest, support::AllDevices(), support::DeviceName);

TEST_P(PoolingTest, StridedAndBackByEveryRule) {
  uint32_t seed = 1;
  for (const CoordinateRule rule : kRules) {
    for (const PoolReduce reduce : kReduces) {
      for (const PoolReduce back : kReduces) {
        GraphBuilder b(++seed, rule);
        const int stem = b.Relu(b.Linear(0, 7, true));
        const int down = b.PoolDown(stem, reduce);
        const int up = b.Unpool(b.Linear(down, 5, true), down, back);
        ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({up, stem}), 3, true)), seed, Dataflow::kFetchOnDemand);
      }
    }
  }
}

TEST_P(PoolingTest, OverNeighbours) {
  for (const PoolReduce reduce : kReduces) {
    GraphBuilder b(30);
    const int pooled = b.PoolSubmanifold(b.Linear(0, 8, true), reduce);
    ExpectEqual(GetParam(), b.Finish(b.Linear(pooled, 3, true)), 30, Dataflow::kFetchOnDemand);
  }
}

// Whichever of them comes first, and whatever forms the convolution reads.
TEST_P(PoolingTest, SharesRulebooksWithConvolutions) {
  for (const Dataflow dataflow : {Dataflow::kFetchOnDemand, Dataflow::kGatherGemmScatter}) {
    for (const bool pool_first : {false, true}) {
      GraphBuilder b(40, CoordinateRule::kPadded);
      const int stem = b.Submanifold(0, 8, true);
      const int first = pool_first ? b.PoolDown(stem, PoolReduce::kMax) : b.Down(stem, 8);
      const int second = pool_first ? b.Down(stem, 8) : b.PoolDown(stem, PoolReduce::kMax);
      const int conv = pool_first ? second : first;
      const int coarse = b.Sum(first, b.PoolSubmanifold(b.Submanifold(second, 8, false), PoolReduce::kAverage));
      // Unpooling by the convolution's rulebook, and the inverse convolution by the same.
      const int up = b.Sum(b.Unpool(coarse, conv, PoolReduce::kAverage), b.Up(coarse, conv, 8));
      const Graph graph = b.Finish(b.Linear(up, 3, true));
      EXPECT_EQ(graph.levels.levels().size(), 2u);
      for (const kernels::MapSearch search :
           {kernels::MapSearch::kMerge, kernels::MapSearch::kHash, kernels::MapSearch::kGrid}) {
        ExpectEqual(GetParam(), graph, 40, dataflow, search);
      }
    }
  }
}

// Of a value whose channels lie in the middle of a concatenation, and where the head alone reads the result.
TEST_P(PoolingTest, OfColumnsAndForTheHead) {
  GraphBuilder b(50);
  const int first = b.Linear(0, 3, true), second = b.Linear(0, 5, true);
  const int both = b.Concat({first, second});
  const int pooled = b.PoolSubmanifold(second, PoolReduce::kSum);
  const int sum = b.Linear(b.Concat({both, pooled, first}), 4, true);
  ExpectEqual(GetParam(), b.Finish(b.PoolSubmanifold(sum, PoolReduce::kAverage)), 50, Dataflow::kFetchOnDemand);
}

// What the CPU makes for a GPU without room has the forms that pools read.
TEST(PoolingCudaTest, MapsThatAreMadeOnTheCpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  GraphBuilder b(60);
  const int stem = b.Submanifold(0, 8, true);
  const int down = b.PoolDown(stem, PoolReduce::kMax);
  const int inner = b.PoolSubmanifold(b.Submanifold(down, 8, true), PoolReduce::kAverage);
  const int gate = b.GlobalPool(inner, PoolReduce::kAverage);
  const int gated = b.Broadcast(b.SampleNorm(inner, 2, true), gate, BroadcastOp::Function::kAdd);
  const int up = b.Unpool(gated, down, PoolReduce::kAverage);
  const int part = b.Crop(up, {1, 1, 0, 0}, {6, 3, 4, 1});
  const int sum = b.UnionSum(part, b.UnionSum(up, b.Crop(stem, {0, 0, 0, 0}, {4, 4, 4, 1})));
  const Graph graph = b.Finish(b.Linear(b.Onto(sum, 0, 8), 3, true));
  // Two million points in few voxels: the maps would be made for two million voxels.
  std::mt19937 random(60);
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;
  for (int i = 0; i < 2'000'000; ++i) {
    for (size_t axis = 0; axis < 3; ++axis) values.push_back(unit(random) * static_cast<float>(kShape[axis]));
    values.push_back(unit(random));
  }
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), values.size() / 4);
  const auto run = [&](int64_t limit) {
    BatchOutput output;
    const auto runner = DeviceRunner::Create({.device = support::Device::kCuda, .device_memory_limit = limit});
    output.status = runner.status();
    if (!runner.ok()) return output;
    const auto program = (*runner)->Compile(graph, {.device = support::Device::kCuda, .plan = kDefaultCudaConvPlan});
    output.status = program.status();
    return program.ok() ? (*runner)->Run(*program, {&cloud}, true) : std::move(output);
  };
  const BatchOutput expected = run(0);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  EXPECT_FALSE(expected.geometry_on_cpu);
  bool fell_back = false;
  for (int64_t limit = int64_t{96} << 20; limit < int64_t{8192} << 20 && !fell_back; limit += limit / 4) {
    const BatchOutput output = run(limit);
    if (!output.status.ok()) {
      ASSERT_EQ(ReasonOf(output.status), error_reason::kOutOfMemory) << output.status;
      continue;
    }
    ASSERT_TRUE(output.geometry_on_cpu) << "no limit was found under which the CPU has to help; last: " << limit;
    fell_back = true;
    const std::vector<float>& scores = output.samples[0].scores;
    ASSERT_EQ(scores.size(), expected.samples[0].scores.size());
    for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], expected.samples[0].scores[i], 1e-2f) << i;
  }
  EXPECT_TRUE(fell_back);
}

}  // namespace
}  // namespace voxserve
