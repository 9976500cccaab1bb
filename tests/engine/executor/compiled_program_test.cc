// Compares compiled programs with an interpreter of graphs on the CPU and a GPU. Folding batch norms, fusing layers,
// placing buffers and reusing memory must not change results.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/compiler/compiler.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/support/activation_formulas.h"

namespace voxserve::compiled_program_test {
namespace {

int CountSteps(const Graph& graph) { return static_cast<int>(Compile(graph, Plan(), {}).steps.size()); }

class CompilerTest : public testing::TestWithParam<support::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, CompilerTest, support::AllDevices(), support::DeviceName);

TEST_P(CompilerTest, NormActivationAndResidualCostNoStep) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(1);
  const int stem = b.Relu(b.Norm(b.Submanifold(0, 8, false)));
  const int block = b.Norm(b.Submanifold(stem, 8, true));
  const Graph graph = b.Finish(b.Linear(b.Relu(b.Sum(block, stem)), 3, true));
  // The steps are: voxel features, two convolutions, linear, argmax and the two outputs.
  EXPECT_EQ(CountSteps(graph), 7);
  ExpectEqual(GetParam(), graph, 1);
}

TEST_P(CompilerTest, EveryActivationCostsNoStep) {
  SKIP_WITHOUT(GetParam());
  for (const kernels::Activation& activation : support::EveryActivation()) {
    if (activation.function == kernels::ActivationFunction::kNone) continue;
    GraphBuilder b(9);
    const int stem = b.Activation(b.Norm(b.Submanifold(0, 8, false)), activation);
    const int block = b.Norm(b.Submanifold(stem, 8, true));
    const int sum = b.Activation(b.Sum(block, stem), activation);
    const Graph graph = b.Finish(b.Linear(b.Activation(b.Linear(sum, 7, true), activation), 3, true));
    EXPECT_EQ(CountSteps(graph), 8) << static_cast<int>(activation.function);
    // Functions of functions that grow fast, or that have no value below 0, leave the range of float32.
    const double at_8 = support::DefinedActivation(activation, 8), below_0 = support::DefinedActivation(activation, -8);
    if (at_8 <= 16 && std::isfinite(below_0)) ExpectEqual(GetParam(), graph, 9);
  }
}

TEST_P(CompilerTest, OfTwoSummandsTheLaterOneAbsorbsTheSum) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(2);
  const int stem = b.Submanifold(0, 4, false);
  const int main = b.Norm(b.Submanifold(stem, 8, false));
  const int shortcut = b.Norm(b.Linear(stem, 8, false));
  const Graph graph = b.Finish(b.Linear(b.Relu(b.Sum(main, shortcut)), 3, true));
  EXPECT_EQ(CountSteps(graph), 8);
  ExpectEqual(GetParam(), graph, 2);
}

TEST_P(CompilerTest, ValueThatIsReadTwiceIsNotFusedAway) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(3);
  const int conv = b.Submanifold(0, 6, true);
  const int norm = b.Norm(conv);  // conv is read by norm and by the sum
  const Graph graph = b.Finish(b.Linear(b.Sum(b.Relu(norm), conv), 3, false));
  ExpectEqual(GetParam(), graph, 3);
}

// No output depends on `down`, so it must not be computed, and must not prevent that the ReLU is fused into `conv`. The
// level of `down` is still made, since nodes may use a node for its sites alone.
TEST_P(CompilerTest, WhatNoOutputReadsIsNotComputed) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(10);
  const int conv = b.Submanifold(0, 6, true);
  const int down = b.Down(conv, 8);
  b.Concat({down, b.Norm(down)});
  const Graph graph = b.Finish(b.Linear(b.Relu(conv), 3, false));
  const Program program = Compile(graph, Plan(), {});
  // The steps are: voxel features, convolution, linear, argmax and the two outputs.
  EXPECT_EQ(program.steps.size(), 6u);
  EXPECT_EQ(program.convs.size(), 1u);
  EXPECT_EQ(program.rulebooks.size(), 1u);
  EXPECT_EQ(program.levels.size(), 2u);
  for (const Buffer& buffer : program.buffers) EXPECT_GE(buffer.first_step, 0);
  ExpectEqual(GetParam(), graph, 10);
}

TEST_P(CompilerTest, SumOfAValueWithItself) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(4);
  const int conv = b.Submanifold(0, 6, true);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Sum(conv, conv), 3, false)), 4);
}

TEST_P(CompilerTest, ConcatenationsAreWrittenInPlaceAndNest) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(5);
  const int skip = b.Relu(b.Submanifold(0, 5, true));  // 5 channels, so columns are not aligned
  const int down = b.Down(skip, 8);
  const int up = b.Relu(b.Up(down, down, 7));
  const int inner = b.Concat({up, skip});
  const int outer = b.Concat({b.Submanifold(inner, 3, false), inner});
  const Graph graph = b.Finish(b.Linear(outer, 4, true));
  // The steps are: voxel features, skip, down, up, conv, linear, argmax and the two outputs. There is no copy.
  EXPECT_EQ(CountSteps(graph), 9);
  ExpectEqual(GetParam(), graph, 5);
}

TEST_P(CompilerTest, ConcatenationCopiesWhatCannotBeWrittenInPlace) {
  SKIP_WITHOUT(GetParam());
  GraphBuilder b(6);
  const int conv = b.Submanifold(0, 5, true);
  const int twice = b.Concat({conv, 0, conv});  // conv twice, and the voxels' own features
  const int again = b.Concat({b.Relu(twice), conv});
  const Graph graph = b.Finish(b.Linear(again, 4, true));
  ExpectEqual(GetParam(), graph, 6);
}

// Layers that only scores need may come after the labels in the file. They must not use the memory of the labels'
// logits too early.
TEST_P(CompilerTest, OutputsOfDifferentHeadsInAnyOrder) {
  SKIP_WITHOUT(GetParam());
  for (const bool labels_first : {true, false}) {
    GraphBuilder b(8);
    const int conv = b.Submanifold(0, 32, true);
    if (labels_first) b.AddLabels(b.Linear(conv, 3, true));
    b.AddScores(b.Linear(b.Relu(b.Linear(conv, 3, true)), 3, true));
    if (!labels_first) b.AddLabels(b.Linear(conv, 3, true));
    ExpectEqual(GetParam(), b.FinishOutputs(), 8);
  }
}

// In 16 bits, a GPU's linear layer writes labels without scores (LinearStep::Label).
TEST_P(CompilerTest, LabelsDoNotDependOnWhetherScoresAreAskedFor) {
  SKIP_WITHOUT(GetParam());
  const bool is_on_gpu = GetParam() == support::Device::kCuda;
  const ModelConfig::Precision precision =
      is_on_gpu ? ModelConfig::Precision::kFloat16 : ModelConfig::Precision::kFloat32;
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  for (const int num_classes : {1, 2, 19, 32, 33}) {
    SCOPED_TRACE(num_classes);
    GraphBuilder b(11);
    const Graph graph = b.Finish(b.Linear(b.Relu(b.Submanifold(0, 16, true)), num_classes, true));
    const auto program = (*runner)->Compile(
        graph, {.device = GetParam(), .precision = precision, .plan = DefaultPlanOf(GetParam(), precision)});
    ASSERT_TRUE(program.ok()) << program.status();
    const Points points = RandomScan(11, 500);
    const auto cloud = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
    ASSERT_TRUE(cloud.ok());
    const BatchReport with_scores = (*runner)->Run(*program, {&*cloud, &*cloud}, true);
    const BatchReport labels_alone = (*runner)->Run(*program, {&*cloud, &*cloud}, false);
    ASSERT_TRUE(with_scores.status.ok()) << with_scores.status;
    ASSERT_TRUE(labels_alone.status.ok()) << labels_alone.status;
    for (const size_t sample : {size_t{0}, size_t{1}}) {
      EXPECT_EQ(labels_alone.samples[sample].labels(), with_scores.samples[sample].labels());
      EXPECT_EQ(labels_alone.samples[sample].labels().size(), points.size());
    }
  }
}

TEST(CompilerLabelTest, CanBeWide) {
  GraphBuilder b(7);
  const Graph graph = b.Finish(b.Linear(0, 3, true));
  EXPECT_EQ(Compile(graph, Plan(), {.bytes_per_label = 2}).label_dtype, DType::kUint16);
  EXPECT_EQ(Compile(graph, Plan(), {}).label_dtype, DType::kUint8);
}

class RandomGraphTest : public testing::TestWithParam<std::tuple<support::Device, uint32_t>> {};

TEST_P(RandomGraphTest, ProgramEqualsInterpreter) {
  const auto [device, seed] = GetParam();
  SKIP_WITHOUT(device);
  std::mt19937 random(seed);
  const auto pick = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); };
  const kernels::CoordinateRule rules[] = {kernels::CoordinateRule::kFloor, kernels::CoordinateRule::kPadded,
                                           kernels::CoordinateRule::kExpand};
  GraphBuilder b(seed, rules[seed % 3]);
  const int down = b.Down(b.Submanifold(0, 6, true), 6);
  std::vector<int> nodes = {0, down - 1, down};
  for (int i = 0; i < 25; ++i) {
    const int input = nodes[static_cast<size_t>(pick(static_cast<int>(nodes.size())))];
    std::vector<int> alike, same_level;
    for (const int node : nodes) {
      if (b.Level(node) == b.Level(input)) same_level.push_back(node);
      if (b.Level(node) == b.Level(input) && b.Channels(node) == b.Channels(input)) alike.push_back(node);
    }
    const int channels = 1 + pick(9);
    const kernels::PoolReduce reduce = pick(2) == 0 ? kernels::PoolReduce::kMax : kernels::PoolReduce::kAverage;
    switch (pick(14)) {
      case 0:
        nodes.push_back(b.Submanifold(input, channels, pick(2) == 0));
        break;
      case 1:
        nodes.push_back(b.Norm(input));
        break;
      case 2:
        nodes.push_back(b.Relu(input));
        break;
      case 3:
      case 4:
        nodes.push_back(b.Sum(input, alike[static_cast<size_t>(pick(static_cast<int>(alike.size())))]));
        break;
      case 5:
        nodes.push_back(b.Concat({input, same_level[static_cast<size_t>(pick(static_cast<int>(same_level.size())))]}));
        break;
      case 6:
        nodes.push_back(b.Linear(input, channels, pick(2) == 0));
        break;
      case 7:
        nodes.push_back(b.Activation(
            input,
            {kernels::ActivationFunction(1 + pick(static_cast<int>(kernels::ActivationFunction::kTanh))), 0.5f}));
        break;
      case 8:
        nodes.push_back(b.PoolSubmanifold(input, reduce));
        break;
      case 9:
        nodes.push_back(b.Level(input) == kFine ? b.PoolDown(input, reduce) : b.Unpool(input, down, reduce));
        break;
      case 10:
        nodes.push_back(b.SampleNorm(input, pick(2), pick(2) == 0));
        break;
      case 11: {
        const int global = b.Linear(b.GlobalPool(input, reduce), b.Channels(input), true);
        const auto function = pick(2) == 0 ? BroadcastOp::Function::kAdd : BroadcastOp::Function::kConcat;
        nodes.push_back(b.Broadcast(input, global, function));
        break;
      }
      case 12: {  // keeps values within bounds, since sums of huge values would lose digits
        const int gate = b.Activation(b.GlobalPool(input, reduce), kernels::ActivationFunction::kSigmoid);
        nodes.push_back(b.Broadcast(input, gate, BroadcastOp::Function::kMultiply));
        break;
      }
      default:
        nodes.push_back(b.Level(input) == kFine ? b.Down(input, channels) : b.Up(input, down, channels));
    }
  }
  // The last two nodes of each level feed the head, so that most of the graph is read.
  int fine = 0, coarse = down;
  for (const int node : nodes) (b.Level(node) == kFine ? fine : coarse) = node;
  const int trunk = b.Concat({fine, b.Up(coarse, down, 4)});
  const Graph graph = b.FinishWithTwoHeads(trunk, fine, /*reads_trunk_alone=*/pick(2) == 0);
  ExpectEqual(device, graph, seed);
  ExpectEqual(device, graph, seed, kernels::MapSearch::kGrid);
  ExpectEqual(device, graph, seed, kernels::MapSearch::kHash);
  ExpectEqual(device, graph, seed, kernels::MapSearch::kGrid, /*max_grid_bytes=*/0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphTest, testing::Combine(support::AllDevices(), testing::Range(100u, 160u)),
                         [](const auto& seed) {
                           return (std::get<0>(seed.param) == support::Device::kCpu ? "Cpu" : "Cuda") +
                                  std::to_string(std::get<1>(seed.param));
                         });

}  // namespace
}  // namespace voxserve::compiled_program_test
