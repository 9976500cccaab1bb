// Tests that a convolution's step computes the layer norm of its result where it can (layer_fusion.h), and that the
// result is that of the CPU, which computes the two one after the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/ops/rows/row_norm.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/fusion_testing.h"

namespace voxserve::conv_norm_fusion_test {
namespace {

int LayerNorm(GraphBuilder& b, int input) { return b.RowNorm(input, kernels::RowNorm::kLayerNorm, 1e-3f, true); }

int CountFusedNorms(const Graph& graph) {
  return CountFused(graph, [](const Program& program) {
    return std::count_if(program.steps.begin(), program.steps.end(),
                         [](const auto& step) { return dynamic_cast<const RowNormStep*>(step.get()) != nullptr; });
  });
}

// The parts' input has 32 channels.
std::vector<FusionCase> Blocks() {
  return {
      {"as in a transformer's block, twice",
       [](GraphBuilder& b, int in) {
         for (int i = 0; i < 2; ++i) {
           const int sum = b.Sum(LayerNorm(b, b.Submanifold(in, 32, true)), in);
           in = b.Sum(b.Linear(LayerNorm(b, sum), 32, true), sum);
         }
         return in;
       },
       2},
      {"of 64 channels, without a sum",
       [](GraphBuilder& b, int in) { return LayerNorm(b, b.Submanifold(in, 64, false)); }, 1},
      {"of 128 channels, with a second norm",
       [](GraphBuilder& b, int in) { return LayerNorm(b, LayerNorm(b, b.Submanifold(in, 128, true))); }, 1},
      {"of 256 channels and a convolution that scales",
       [](GraphBuilder& b, int in) { return LayerNorm(b, b.Norm(b.Submanifold(in, 256, true))); }, 1},
      {"of a strided convolution",
       [](GraphBuilder& b, int in) {
         const int down = b.Down(in, 64);
         return b.Up(LayerNorm(b, down), down, 32);
       },
       1},
      {"of a convolution with a shortcut",
       [](GraphBuilder& b, int in) { return LayerNorm(b, b.Sum(b.Submanifold(in, 64, true), b.Linear(in, 64, true))); },
       1},
      {"stored in a concatenation",
       [](GraphBuilder& b, int in) {
         return b.Concat({in, LayerNorm(b, b.Submanifold(in, 32, true))});
       },
       1},
      {"stored in a concatenation at no multiple of 16 bytes",
       [](GraphBuilder& b, int in) {
         return b.Concat({b.Submanifold(in, 5, true), LayerNorm(b, b.Submanifold(in, 32, true))});
       },
       1},
      {"of channels that no block holds whole",
       [](GraphBuilder& b, int in) { return LayerNorm(b, b.Submanifold(in, 48, true)); }, 0},
      {"whose convolution is read twice",
       [](GraphBuilder& b, int in) {
         const int conv = b.Submanifold(in, 32, true);
         return b.Sum(b.Linear(LayerNorm(b, conv), 32, true), conv);
       },
       0},
      {"that adds the convolution's result",
       [](GraphBuilder& b, int in) {
         const int conv = b.Submanifold(in, 32, true);
         return b.Sum(LayerNorm(b, conv), conv);
       },
       0},
      {"of an activation", [](GraphBuilder& b, int in) { return LayerNorm(b, b.Relu(b.Submanifold(in, 32, true))); },
       0},
      {"with an activation", [](GraphBuilder& b, int in) { return b.Relu(LayerNorm(b, b.Submanifold(in, 32, true))); },
       0},
      {"of a sum", [](GraphBuilder& b, int in) { return LayerNorm(b, b.Sum(b.Submanifold(in, 32, true), in)); }, 0},
      {"that adds what is computed after the convolution",
       [](GraphBuilder& b, int in) {
         const int conv = b.Submanifold(in, 32, true), later = b.Submanifold(in, 32, true);
         return b.Sum(LayerNorm(b, conv), later);
       },
       0},
      {"of a linear layer", [](GraphBuilder& b, int in) { return LayerNorm(b, b.Linear(in, 32, true)); }, 0},
      {"of another kind",
       [](GraphBuilder& b, int in) { return b.RowNorm(b.Submanifold(in, 32, true), kernels::RowNorm::kL2, 1e-3f); }, 0},
  };
}

Graph GraphOf(const FusionCase& block) {
  GraphBuilder b(61);
  const int in = b.Relu(b.Submanifold(0, 32, true));
  return b.Finish(b.Linear(b.Submanifold(block.add(b, in), 24, true), 5, true));
}

TEST(ConvNormFusionTest, FusesWhatOneKernelCanNorm) {
  for (const FusionCase& block : Blocks()) EXPECT_EQ(CountFusedNorms(GraphOf(block)), block.num_fused) << block.name;
}

// A result that only the head reads stays float32, and the kernels write features alone.
TEST(ConvNormFusionTest, ResultOfTheHeadsTypeIsNotFused) {
  GraphBuilder b(62);
  EXPECT_EQ(CountFusedNorms(b.Finish(LayerNorm(b, b.Submanifold(b.Submanifold(0, 32, true), 32, true)))), 0);
}

// How many columns the blocks of a program's convolutions have, where the GPU has such blocks.
enum class Columns { kDefault, kOfWholeRows, kFewest };

std::vector<ConvPlan> PlansOf(const Program& program, const ConvPlan& base, Columns columns) {
  std::vector<ConvPlan> plans;
  for (const ProgramConv& conv : program.convs) {
    ConvPlan plan = base;
    if (columns != Columns::kDefault) {
      plan.block = {.rows = 64, .columns = columns == Columns::kFewest ? 32 : conv.out_channels, .split_k = 1};
    }
    plans.push_back(conv.Serves(plan) ? plan : base);
  }
  return plans;
}

// Blocks that hold whole rows compute the norm with the convolution, others before it. The scores must be the same.
TEST(ConvNormFusionTest, PlansDoNotChangeTheResult) {
  SKIP_WITHOUT(support::Device::kCuda);
  const FusionDevices devices(63);
  ASSERT_TRUE(devices.are_ready());
  for (const FusionCase& block : Blocks()) {
    SCOPED_TRACE(block.name);
    const Graph graph = GraphOf(block);
    const std::vector<float> expected = devices.ScoresOnCpu(graph);
    for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
      std::vector<float> first_scores;
      for (const Columns columns : {Columns::kDefault, Columns::kOfWholeRows, Columns::kFewest}) {
        SCOPED_TRACE(static_cast<int>(columns));
        const ConvPlan plan = DefaultPlanOf(support::Device::kCuda, precision);
        auto program =
            devices.gpu->Compile(graph, {.device = support::Device::kCuda, .precision = precision, .plan = plan});
        ASSERT_TRUE(program.ok()) << program.status();
        program->default_plans = PlanTable(*program, PlansOf(*program, plan, columns));
        const std::vector<float> scores = ScoresOf(*devices.gpu, *program, devices.cloud);
        ExpectNear(scores, expected, precision == ModelConfig::Precision::kFloat16 ? 1e-2 : 8e-2);
        if (HasFatalFailure()) return;
        if (first_scores.empty()) first_scores = scores;
        ASSERT_EQ(scores, first_scores);
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::conv_norm_fusion_test
