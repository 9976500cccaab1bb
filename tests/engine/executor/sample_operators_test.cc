// Tests operators over whole samples in networks, against an interpreter of graphs: global pooling, broadcasts,
// instance and group norms.

#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/executor/program_comparison.h"

namespace voxserve::sample_operators_test {
namespace {

using kernels::ActivationFunction;
using kernels::PoolReduce;
using Function = BroadcastOp::Function;

constexpr PoolReduce kReduces[] = {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum};
constexpr Function kFunctions[] = {Function::kAdd, Function::kMultiply, Function::kConcat};

int CountSteps(const Graph& graph) { return static_cast<int>(Compile(graph, Plan(), {}).steps.size()); }

class SampleOperatorsTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, SampleOperatorsTest, support::AllDevices(), support::DeviceName);

TEST_P(SampleOperatorsTest, GlobalPoolAndBroadcastOfEveryKind) {
  uint32_t seed = 1;
  for (const PoolReduce reduce : kReduces) {
    for (const Function function : kFunctions) {
      GraphBuilder b(++seed);
      const int stem = b.Submanifold(0, 7, true);
      const int global = b.Linear(b.GlobalPool(stem, reduce), 7, true);
      ExpectEqual(GetParam(), b.Finish(b.Linear(b.Broadcast(stem, global, function), 3, true)), seed);
    }
  }
}

// Tests squeeze and excitation: the operators on a sample's one row, and what is fused into the broadcast that brings
// it back.
TEST_P(SampleOperatorsTest, RowsOfSamplesGoThroughTheOperatorsOfRows) {
  GraphBuilder b(20);
  const int stem = b.Relu(b.Submanifold(0, 8, true));
  const int both = b.Concat({b.GlobalPool(stem, PoolReduce::kMax), b.GlobalPool(stem, PoolReduce::kAverage)});
  const int inner = b.Relu(b.Norm(b.Linear(b.Norm(both), 8, false)));
  const int gate = b.Activation(b.Sum(b.Linear(inner, 8, true), inner), ActivationFunction::kSigmoid);
  const int sum = b.Relu(b.Sum(b.Broadcast(stem, gate, Function::kMultiply), stem));
  const Graph graph = b.Finish(b.Linear(sum, 3, true));
  // The steps are: voxel features, conv, two pools in place, norm, two linear layers, broadcast, linear, argmax and the
  // two outputs.
  EXPECT_EQ(CountSteps(graph), 12);
  ExpectEqual(GetParam(), graph, 20);
}

TEST_P(SampleOperatorsTest, OfACoarseLevelToTheFineOne) {
  GraphBuilder b(30, kernels::CoordinateRule::kPadded);
  const int down = b.Down(b.Submanifold(0, 6, true), 5);
  const int global = b.GlobalPool(down, PoolReduce::kAverage);
  const int fine = b.Broadcast(b.Up(down, down, 4), global, Function::kConcat);
  ExpectEqual(GetParam(), b.Finish(b.Linear(fine, 3, true)), 30);
}

TEST_P(SampleOperatorsTest, NormsOfEveryGrouping) {
  uint32_t seed = 40;
  for (const int num_groups : {0, 1, 2, 3, 6}) {
    for (const bool affine : {false, true}) {
      GraphBuilder b(++seed);
      const int norm = b.SampleNorm(b.Submanifold(0, 6, true), num_groups, affine);
      ExpectEqual(GetParam(), b.Finish(b.Linear(norm, 3, true)), seed);
    }
  }
}

// A batch norm after a sample norm is not folded into it; sums and activations are fused.
TEST_P(SampleOperatorsTest, SumsAndActivationsCostNoStep) {
  GraphBuilder b(50);
  const int stem = b.Submanifold(0, 6, true);
  const int fused = b.Relu(b.Sum(b.SampleNorm(b.Submanifold(stem, 6, false), 3, true), stem));
  const Graph graph = b.Finish(b.Linear(b.Norm(b.SampleNorm(fused, 0, true)), 3, true));
  // The steps are: voxel features, two convs, two sample norms, batch norm, linear, argmax and the two outputs.
  EXPECT_EQ(CountSteps(graph), 10);
  ExpectEqual(GetParam(), graph, 50);
}

TEST_P(SampleOperatorsTest, ForTheHead) {
  GraphBuilder b(60);
  const int stem = b.Linear(0, 4, true);
  const int norm = b.SampleNorm(stem, 2, true);
  b.AddLabels(b.Broadcast(norm, b.GlobalPool(stem, PoolReduce::kMax), Function::kAdd));
  b.AddScores(b.SampleNorm(stem, 0, false));
  ExpectEqual(GetParam(), b.FinishOutputs(), 60);
}

PointCloud Cloud(const Points& points) {
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
}

Graph EveryOperator() {
  GraphBuilder b(70, kernels::CoordinateRule::kPadded);
  const int stem = b.SampleNorm(b.Activation(b.Submanifold(0, 8, true), ActivationFunction::kSilu), 2, true);
  const int down = b.PoolDown(stem, PoolReduce::kMax);
  const int coarse = b.SampleNorm(b.PoolSubmanifold(b.Submanifold(down, 8, true), PoolReduce::kAverage), 0, true);
  const int gate =
      b.Activation(b.Linear(b.GlobalPool(coarse, PoolReduce::kAverage), 8, true), ActivationFunction::kSigmoid);
  const int gated = b.Broadcast(coarse, gate, Function::kMultiply);
  const int fine = b.Concat({b.Unpool(gated, down, PoolReduce::kAverage), stem});
  return b.Finish(b.Linear(b.Broadcast(fine, b.GlobalPool(fine, PoolReduce::kMax), Function::kConcat), 3, true));
}

// All clouds of the batch are empty.
TEST_P(SampleOperatorsTest, BatchWithoutASite) {
  const PointCloud empty = Cloud(Points());
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(EveryOperator(), {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport output = (*runner)->Run(*program, {&empty, &empty}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  for (const InferResult& sample : output.samples) {
    EXPECT_TRUE(sample.status.ok()) << sample.status;
    EXPECT_TRUE(sample.labels().empty());
  }
}

TEST_P(SampleOperatorsTest, EveryOperatorEqualsTheInterpreter) {
  ExpectEqual(GetParam(), EveryOperator(), 70);
  ExpectEqual(GetParam(), EveryOperator(), 71);
}

}  // namespace
}  // namespace voxserve::sample_operators_test
