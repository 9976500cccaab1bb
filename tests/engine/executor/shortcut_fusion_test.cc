// Tests that a convolution computes the shortcut of its residual block where it can (layer_fusion.h), and that the
// result is that of the CPU, which computes the two one after the other.

#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/executor/fusion_testing.h"
#include "tests/support/minkunet.h"

namespace voxserve::shortcut_fusion_test {
namespace {

// Each shortcut that is fused saves a step.
int CountFusedShortcuts(const Graph& graph) {
  return CountFused(graph, [](const Program& program) { return program.steps.size(); });
}

// Residual blocks behind a convolution of the voxels.
std::vector<FusionCase> Blocks() {
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

Graph GraphOf(const FusionCase& block) {
  GraphBuilder b(21);
  const int in = b.Relu(b.Submanifold(0, 32, true));
  return b.Finish(b.Linear(b.Submanifold(block.add(b, in), 32, true), 5, true));
}

TEST(ShortcutFusionTest, FusesWhatOneKernelCanAdd) {
  for (const FusionCase& block : Blocks())
    EXPECT_EQ(CountFusedShortcuts(GraphOf(block)), block.num_fused) << block.name;
}

// A result that only the head reads stays float32, and the kernels add features alone.
TEST(ShortcutFusionTest, ResultOfTheHeadsTypeIsNotFused) {
  GraphBuilder b(22);
  const int in = b.Relu(b.Submanifold(0, 32, true));
  EXPECT_EQ(CountFusedShortcuts(b.Finish(b.Sum(b.Submanifold(in, 5, true), b.Linear(in, 5, true)))), 0);
}

TEST(ShortcutFusionTest, MinkUNetHasSeven) {
  const absl::StatusOr<Graph> graph = support::LoadNetwork(support::MinkUNet({}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(CountFusedShortcuts(*graph), 7);
}

TEST(ShortcutFusionTest, EveryDataflowAddsShortcuts) {
  SKIP_WITHOUT(support::Device::kCuda);
  const FusionDevices devices(23);
  ASSERT_TRUE(devices.are_ready());
  for (const FusionCase& block : Blocks()) {
    SCOPED_TRACE(block.name);
    const Graph graph = GraphOf(block);
    const std::vector<float> expected = devices.ScoresOnCpu(graph);
    for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
      for (const Dataflow dataflow : {Dataflow::kImplicitGemm, Dataflow::kGatherGemmScatter}) {
        SCOPED_TRACE(DataflowOf(dataflow).name());
        const std::vector<float> scores =
            ScoresOf(*devices.gpu, graph,
                     {.device = support::Device::kCuda,
                      .precision = precision,
                      .plan = ByDataflow(DefaultPlanOf(support::Device::kCuda, precision), dataflow)},
                     devices.cloud);
        ExpectNear(scores, expected, precision == ModelConfig::Precision::kFloat16 ? 4e-3 : 3e-2);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::shortcut_fusion_test
