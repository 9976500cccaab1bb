// Tests pooling in networks on the CPU and a GPU against an interpreter of graphs. Pools have rulebooks of their own,
// or share the rulebooks of convolutions.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/ops/rows/scale_shift.h"
#include "tests/engine/executor/program_comparison.h"

namespace voxserve::pooling_test {
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
        const int coarse = b.Linear(down, 5, true);
        const int up = b.Sum(b.Unpool(coarse, down, back), b.Up(coarse, down, 5));
        ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({up, stem}), 3, true)), seed);
      }
    }
  }
}

// A pool takes the norm, the addition and the activation behind it.
TEST_P(PoolingTest, ComputesWhatFollowsIt) {
  for (const PoolReduce reduce : kReduces) {
    GraphBuilder b(20);
    const int stem = b.Linear(0, 8, true);
    const int down = b.PoolDown(stem, reduce);
    const int coarse = b.Activation(b.Norm(down), kernels::ActivationFunction::kGelu);
    const int back = b.Relu(b.Sum(b.Unpool(b.Linear(coarse, 8, true), down, PoolReduce::kSum), stem));
    const Graph graph = b.Finish(b.Linear(back, 3, true));
    ExpectEqual(GetParam(), graph, 20);
    const Program program = Compile(graph, Plan(), {});
    const auto is_scale_shift = [](const auto& step) { return dynamic_cast<ScaleShiftStep*>(step.get()) != nullptr; };
    EXPECT_TRUE(std::none_of(program.steps.begin(), program.steps.end(), is_scale_shift));
  }
}

TEST_P(PoolingTest, OverNeighbours) {
  for (const PoolReduce reduce : kReduces) {
    GraphBuilder b(30);
    const int pooled = b.PoolSubmanifold(b.Linear(0, 8, true), reduce);
    ExpectEqual(GetParam(), b.Finish(b.Linear(pooled, 3, true)), 30);
  }
}

// The pool may come before or after the convolution.
TEST_P(PoolingTest, SharesRulebooksWithConvolutions) {
  for (const bool pool_first : {false, true}) {
    GraphBuilder b(40, CoordinateRule::kPadded);
    const int stem = b.Submanifold(0, 8, true);
    const int first = pool_first ? b.PoolDown(stem, PoolReduce::kMax) : b.Down(stem, 8);
    const int second = pool_first ? b.Down(stem, 8) : b.PoolDown(stem, PoolReduce::kMax);
    const int conv = pool_first ? second : first;
    const int coarse = b.Sum(first, b.PoolSubmanifold(b.Submanifold(second, 8, false), PoolReduce::kAverage));
    // Unpooling and the inverse convolution both use the convolution's rulebook.
    const int up = b.Sum(b.Unpool(coarse, conv, PoolReduce::kAverage), b.Up(coarse, conv, 8));
    const Graph graph = b.Finish(b.Linear(up, 3, true));
    EXPECT_EQ(graph.levels.levels().size(), 2u);
    for (const kernels::MapSearch search :
         {kernels::MapSearch::kMerge, kernels::MapSearch::kHash, kernels::MapSearch::kGrid}) {
      ExpectEqual(GetParam(), graph, 40, search);
    }
  }
}

// Pools a value whose channels are in the middle of a concatenation. Only the head reads the result.
TEST_P(PoolingTest, OfColumnsAndForTheHead) {
  GraphBuilder b(50);
  const int first = b.Linear(0, 3, true), second = b.Linear(0, 5, true);
  const int both = b.Concat({first, second});
  const int pooled = b.PoolSubmanifold(second, PoolReduce::kSum);
  const int sum = b.Linear(b.Concat({both, pooled, first}), 4, true);
  ExpectEqual(GetParam(), b.Finish(b.PoolSubmanifold(sum, PoolReduce::kAverage)), 50);
}

// If the GPU has too little memory, the CPU makes the kernel maps. They must have the forms that pools read.
TEST(PoolingCudaTest, MapsThatAreMadeOnTheCpu) {
  SKIP_WITHOUT(support::Device::kCuda);
  GraphBuilder b(60);
  const int stem = b.Submanifold(0, 8, true);
  const int down = b.PoolDown(stem, PoolReduce::kMax);
  const int inner = b.PoolSubmanifold(b.Submanifold(down, 8, true), PoolReduce::kAverage);
  const int gate = b.GlobalPool(inner, PoolReduce::kAverage);
  const int gated = b.Broadcast(b.SampleNorm(inner, 2, true), gate, BroadcastOp::Function::kAdd);
  const int up = b.Sum(b.Unpool(gated, down, PoolReduce::kAverage), b.Up(gated, down, 8));
  const int part = b.Crop(up, {1, 1, 0, 0}, {6, 3, 4, 1});
  const int sum = b.UnionSum(part, b.UnionSum(up, b.Crop(stem, {0, 0, 0, 0}, {4, 4, 4, 1})));
  ExpectEqualWithMapsOfTheCpu(b.Finish(b.Linear(b.Onto(sum, 0, 8), 3, true)));
}

}  // namespace
}  // namespace voxserve::pooling_test
