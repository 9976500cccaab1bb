// Tests that a convolution computes the shortcut of its residual block where it can (layer_fusion.h), and that the
// result is that of the CPU, which computes the two one after the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/compiler/compiler.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/random_points.h"
#include "tests/support/minkunet.h"

namespace voxserve::shortcut_fusion_test {
namespace {

int CountSteps(const Graph& graph, bool on_cuda, DType dtype) {
  return static_cast<int>(Compile(graph, Plan(), {.on_cuda = on_cuda, .dtype = dtype}).steps.size());
}

// Returns how many shortcuts are fused for a GPU and float16. Each saves a step.
int CountFused(const Graph& graph) {
  const int num_steps = CountSteps(graph, /*on_cuda=*/false, DType::kFloat32);
  EXPECT_EQ(CountSteps(graph, /*on_cuda=*/true, DType::kFloat32), num_steps);
  return num_steps - CountSteps(graph, /*on_cuda=*/true, DType::kFloat16);
}

// A residual block behind a convolution of the voxels. in: the block's input.
struct Block {
  std::string name;
  std::function<int(GraphBuilder& b, int in)> add;
  int num_fused;
};

std::vector<Block> Blocks() {
  return {
      {"the shortcut last",
       [](GraphBuilder& b, int in) {
         const int main = b.Norm(b.Submanifold(b.Relu(b.Submanifold(in, 24, false)), 40, true));
         return b.Relu(b.Sum(main, b.Norm(b.Linear(in, 40, true))));
       },
       1},
      {"the shortcut first",
       [](GraphBuilder& b, int in) {
         const int shortcut = b.Norm(b.Linear(in, 40, true));
         return b.Relu(b.Sum(b.Submanifold(b.Relu(b.Submanifold(in, 24, false)), 40, false), shortcut));
       },
       1},
      {"without an activation, and with one that is no ReLU",
       [](GraphBuilder& b, int in) {
         const int sum = b.Sum(b.Submanifold(in, 16, false), b.Linear(in, 16, false));
         const int main = b.Submanifold(sum, 8, false);
         return b.Activation(b.Sum(main, b.Linear(sum, 8, false)), kernels::ActivationFunction::kSilu);
       },
       2},
      {"of channels that fill no vectors of 16 bytes",
       [](GraphBuilder& b, int in) {
         const int narrow = b.Submanifold(in, 5, true);
         return b.Relu(b.Sum(b.Submanifold(narrow, 13, true), b.Linear(narrow, 13, true)));
       },
       1},
      {"beside the sum of the block's input",
       [](GraphBuilder& b, int in) {
         const int sum = b.Sum(b.Submanifold(in, 32, true), in);
         return b.Relu(b.Sum(sum, b.Linear(in, 32, true)));
       },
       1},
      {"that adds the block's input itself",
       [](GraphBuilder& b, int in) {
         const int shortcut = b.Sum(b.Linear(in, 32, true), in);
         return b.Relu(b.Sum(b.Submanifold(b.Relu(b.Submanifold(in, 24, true)), 32, true), shortcut));
       },
       1},
      {"beside a second one, both after the convolution",
       [](GraphBuilder& b, int in) {
         const int first = b.Sum(b.Submanifold(in, 24, true), b.Linear(in, 24, true));
         return b.Relu(b.Sum(first, b.Linear(in, 24, true)));
       },
       1},
      {"beside a second one, the first before the convolution",
       [](GraphBuilder& b, int in) {
         const int shortcut = b.Linear(in, 24, true);
         const int first = b.Sum(b.Submanifold(in, 24, true), shortcut);
         return b.Relu(b.Sum(first, b.Linear(in, 24, true)));
       },
       1},
      {"stored in a concatenation",
       [](GraphBuilder& b, int in) {
         return b.Concat({b.Relu(b.Sum(b.Submanifold(in, 24, true), b.Linear(in, 24, true))), in});
       },
       1},
      {"before a block that adds its input",
       [](GraphBuilder& b, int in) {
         const int sum = b.Relu(b.Sum(b.Submanifold(in, 24, true), b.Linear(in, 24, true)));
         return b.Relu(b.Sum(b.Submanifold(b.Relu(b.Submanifold(sum, 24, true)), 24, true), sum));
       },
       1},
      {"of a strided convolution's level",
       [](GraphBuilder& b, int in) {
         const int down = b.Down(in, 16);
         const int sum = b.Relu(b.Sum(b.Submanifold(down, 24, true), b.Linear(down, 24, true)));
         return b.Up(sum, down, 16);
       },
       1},
      {"whose convolution is read twice",
       [](GraphBuilder& b, int in) {
         const int main = b.Submanifold(in, 24, true);
         return b.Concat({b.Sum(main, b.Linear(in, 24, true)), b.Relu(main)});
       },
       0},
      {"that is read twice",
       [](GraphBuilder& b, int in) {
         const int shortcut = b.Linear(in, 24, true);
         return b.Concat({b.Sum(b.Submanifold(in, 24, true), shortcut), b.Relu(shortcut)});
       },
       0},
      {"with an activation before the sum",
       [](GraphBuilder& b, int in) {
         const int first = b.Sum(b.Relu(b.Submanifold(in, 24, true)), b.Linear(in, 24, true));
         return b.Sum(b.Submanifold(first, 8, true), b.Relu(b.Linear(first, 8, true)));
       },
       0},
      {"whose input is computed after the convolution",
       [](GraphBuilder& b, int in) {
         const int main = b.Submanifold(in, 24, true);
         return b.Sum(main, b.Linear(b.Submanifold(in, 16, true), 24, true));
       },
       0},
      {"that is no product of rows",
       [](GraphBuilder& b, int in) { return b.Sum(b.Submanifold(in, 24, true), b.Submanifold(in, 24, true)); }, 0},
  };
}

Graph GraphOf(const Block& block) {
  GraphBuilder b(21);
  const int in = b.Relu(b.Submanifold(0, 32, true));
  return b.Finish(b.Linear(b.Submanifold(block.add(b, in), 32, true), 5, true));
}

TEST(ShortcutFusionTest, FusesWhatOneKernelCanAdd) {
  for (const Block& block : Blocks()) EXPECT_EQ(CountFused(GraphOf(block)), block.num_fused) << block.name;
}

// A result that only the head reads stays float32, and the kernels add features alone.
TEST(ShortcutFusionTest, ResultOfTheHeadsTypeIsNotFused) {
  GraphBuilder b(22);
  const int in = b.Relu(b.Submanifold(0, 32, true));
  EXPECT_EQ(CountFused(b.Finish(b.Sum(b.Submanifold(in, 5, true), b.Linear(in, 5, true)))), 0);
}

TEST(ShortcutFusionTest, MinkUNetHasSeven) {
  const absl::StatusOr<Graph> graph = support::LoadNetwork(support::MinkUNet({}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(CountFused(*graph), 7);
}

TEST(ShortcutFusionTest, EveryDataflowAddsShortcuts) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto gpu = DeviceRunner::Create({.device = support::Device::kCuda});
  const auto cpu = DeviceRunner::Create({.device = support::Device::kCpu});
  ASSERT_TRUE(gpu.ok() && cpu.ok()) << gpu.status() << cpu.status();
  const Points points = RandomScan(23, 400);
  const auto cloud = PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  ASSERT_TRUE(cloud.ok());
  for (const Block& block : Blocks()) {
    SCOPED_TRACE(block.name);
    const Graph graph = GraphOf(block);
    const auto on_cpu = (*cpu)->Compile(graph, {.device = support::Device::kCpu});
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
    const BatchReport expected = (*cpu)->Run(*on_cpu, {&*cloud}, true);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    const absl::Span<const float> expected_scores = expected.samples[0].scores();
    float largest = 0;
    for (const float score : expected_scores) largest = std::max(largest, std::abs(score));
    for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
      for (const Dataflow dataflow : {Dataflow::kImplicitGemm, Dataflow::kGatherGemmScatter}) {
        SCOPED_TRACE(DataflowOf(dataflow).name());
        const auto program =
            (*gpu)->Compile(graph, {.device = support::Device::kCuda,
                                    .precision = precision,
                                    .plan = ByDataflow(DefaultPlanOf(support::Device::kCuda, precision), dataflow)});
        ASSERT_TRUE(program.ok()) << program.status();
        const BatchReport output = (*gpu)->Run(*program, {&*cloud, &*cloud}, true);
        ASSERT_TRUE(output.status.ok()) << output.status;
        const double tolerance = largest * (precision == ModelConfig::Precision::kFloat16 ? 4e-3 : 3e-2);
        for (const InferResult& sample : output.samples) {
          ASSERT_EQ(sample.scores().size(), expected_scores.size());
          for (size_t i = 0; i < expected_scores.size(); ++i) {
            ASSERT_NEAR(sample.scores()[i], expected_scores[i], tolerance);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::shortcut_fusion_test
