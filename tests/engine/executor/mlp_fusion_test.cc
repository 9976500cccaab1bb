// Tests which MLPs of transformer blocks become one step (layer_fusion.h), and that the result is that of the CPU,
// which computes their layers one after the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_values.h"
#include "engine/ops/mlp/mlp.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/fusion_testing.h"
#include "tests/engine/executor/graph_builder.h"

namespace voxserve::mlp_fusion_test {
namespace {

using kernels::ActivationFunction;
using kernels::RowNorm;

constexpr float kEpsilon = 1e-5f;

// Counts 16-bit programs' steps and buffers.
struct Size {
  int steps = 0;
  int buffers_of_hidden_values = 0;  // buffers of kHidden channels
};
constexpr int kHidden = 72;  // no other value of the networks has as many channels

Size SizeOf(const Graph& graph, bool fuses_mlps, bool merges_products = false) {
  const Program program = Compile(
      graph, Plan(),
      {.on_cuda = true, .dtype = DType::kFloat16, .merges_products = merges_products, .fuses_mlps = fuses_mlps});
  Size size{.steps = static_cast<int>(program.steps.size())};
  for (const Buffer& buffer : program.buffers) size.buffers_of_hidden_values += buffer.channels == kHidden;
  return size;
}

int Gelu(GraphBuilder& b, int x) { return b.Activation(x, ActivationFunction::kGelu); }
int LayerNorm(GraphBuilder& b, int x) { return b.RowNorm(x, RowNorm::kLayerNorm, kEpsilon, /*affine=*/true); }

// A part of a network behind rows of 40 channels, `in`. It returns rows that are no output.
struct Case {
  std::string name;
  std::function<int(GraphBuilder& b, int in)> add;
  int steps_saved;  // by fusion; 0: nothing is fused
};

std::vector<Case> FusedCases() {
  return {
      {"PTv3's and LitePT's: a norm before it, which the residual passes by",
       [](GraphBuilder& b, int in) {
         const int y = Gelu(b, b.Linear(LayerNorm(b, in), kHidden, true));
         return b.Sum(in, b.Linear(y, 40, true));
       },
       2},
      {"DSVT's: norms before and behind it, which have the residual",
       [](GraphBuilder& b, int in) {
         const int x = LayerNorm(b, in);
         const int y = Gelu(b, b.Linear(x, kHidden, true));
         const int z = LayerNorm(b, b.Sum(x, b.Linear(y, 40, true)));
         return LayerNorm(b, b.Sum(z, in));
       },
       3},  // without it the last two norms are one step
      {"DSVT's embedding of positions: a batch norm, and a narrow input",
       [](GraphBuilder& b, int in) {
         const int narrow = b.Submanifold(in, 3, true);
         return b.Linear(b.Relu(b.Norm(b.Linear(narrow, kHidden, true))), 136, true);
       },
       1},
      {"the two products alone, without biases",
       [](GraphBuilder& b, int in) { return b.Linear(b.Relu(b.Linear(in, kHidden, false)), 40, false); }, 1},
      {"a residual that is neither the input nor its norm",
       [](GraphBuilder& b, int in) {
         const int other = b.Submanifold(in, 40, true);
         const int y = Gelu(b, b.Linear(in, kHidden, true));
         return b.Sum(b.Linear(y, 40, true), other);
       },
       1},
      {"a residual that is the input, without a norm",
       [](GraphBuilder& b, int in) { return b.Sum(b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true), in); }, 1},
      {"a batch norm behind the second product",
       [](GraphBuilder& b, int in) { return b.Norm(b.Linear(b.Relu(b.Linear(in, kHidden, true)), 40, true)); }, 1},
      {"a norm before it that something else reads is a step of its own",
       [](GraphBuilder& b, int in) {
         const int x = LayerNorm(b, in);
         const int y = b.Linear(Gelu(b, b.Linear(x, kHidden, true)), 40, true);
         return b.Sum(y, b.PoolSubmanifold(x, kernels::PoolReduce::kMax));
       },
       1},
      {"a norm behind it whose input something else reads is a step of its own",
       [](GraphBuilder& b, int in) {
         const int y = b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true);
         return b.Sum(LayerNorm(b, y), b.Submanifold(y, 40, true));
       },
       1},
      {"a norm behind it with an activation is a step of its own",
       [](GraphBuilder& b, int in) {
         return b.Relu(LayerNorm(b, b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true)));
       },
       1},
      {"a norm before it with an activation is a step of its own",
       [](GraphBuilder& b, int in) {
         return b.Linear(Gelu(b, b.Linear(b.Relu(LayerNorm(b, in)), kHidden, true)), 40, true);
       },
       1},
      {"a fourth norm behind it is a step of its own",
       [](GraphBuilder& b, int in) {
         int x = b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true);
         for (int i = 0; i < 4; ++i) x = LayerNorm(b, x);
         return x;
       },
       2},  // without it the norms are two steps
      {"softmax is no layer norm",
       [](GraphBuilder& b, int in) {
         const int x = b.RowNorm(in, RowNorm::kSoftmax);
         return b.RowNorm(b.Linear(Gelu(b, b.Linear(x, kHidden, true)), 40, true), RowNorm::kSoftmax);
       },
       1},
      {"two of them, one behind the other: the first has the norm between them",
       [](GraphBuilder& b, int in) {
         for (int i = 0; i < 2; ++i) {
           const int y = Gelu(b, b.Linear(LayerNorm(b, in), kHidden, true));
           in = b.Linear(y, 40, true);
         }
         return in;
       },
       4},
      {"stored in a concatenation in columns that are not aligned",
       [](GraphBuilder& b, int in) {
         const int narrow = b.Submanifold(in, 5, true);
         const int y = b.Linear(b.Relu(b.Linear(in, kHidden, true)), 40, true);
         return b.Concat({narrow, y});
       },
       0},  // the copy to its columns is one step more
      {"of positions, which are float32 and are converted first",
       [](GraphBuilder& b, int in) {
         const int place = b.SitePosition({.is_mean = true, .scale = {0.25f, 0.25f, 0.25f}});
         return b.Sum(in, b.Linear(b.Relu(b.Linear(place, kHidden, true)), 40, true));
       },
       1},
      {"of a sample's rows",
       [](GraphBuilder& b, int in) {
         const int pooled = b.GlobalPool(in, kernels::PoolReduce::kAverage);
         const int y = b.Linear(Gelu(b, b.Linear(pooled, kHidden, true)), 40, true);
         return b.Broadcast(in, y, BroadcastOp::Function::kAdd);
       },
       1},
  };
}

std::vector<Case> OtherCases() {
  return {
      {"hidden values that something else reads",
       [](GraphBuilder& b, int in) {
         const int y = Gelu(b, b.Linear(in, kHidden, true));
         return b.Sum(b.Linear(y, 40, true), b.Submanifold(y, 40, true));
       },
       0},
      {"hidden values to which something is added",
       [](GraphBuilder& b, int in) {
         const int y = b.Sum(b.Submanifold(in, kHidden, true), b.Linear(in, kHidden, true));
         return b.Linear(Gelu(b, y), 40, true);
       },
       0},
      {"without an activation", [](GraphBuilder& b, int in) { return b.Linear(b.Linear(in, kHidden, true), 40, true); },
       0},
      {"with another activation",
       [](GraphBuilder& b, int in) {
         return b.Linear(b.Activation(b.Linear(in, kHidden, true), ActivationFunction::kSilu), 40, true);
       },
       0},
      {"with an activation behind the second product",
       [](GraphBuilder& b, int in) { return b.Relu(b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true)); }, 0},
      {"whose first product is a convolution of more cells",
       [](GraphBuilder& b, int in) { return b.Linear(Gelu(b, b.Submanifold(in, kHidden, true)), 40, true); }, 0},
      {"whose second product is a convolution of more cells",
       [](GraphBuilder& b, int in) { return b.Submanifold(Gelu(b, b.Linear(in, kHidden, true)), 40, true); }, 0},
      {"with too many output channels",
       [](GraphBuilder& b, int in) { return b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 264, true); }, 0},
      {"with too many input channels",
       [](GraphBuilder& b, int in) {
         return b.Linear(Gelu(b, b.Linear(b.Submanifold(in, 264, true), kHidden, true)), 40, true);
       },
       0},
      {"with too many hidden channels",
       [](GraphBuilder& b, int in) { return b.Linear(Gelu(b, b.Linear(in, 1025, true)), 40, true); }, 0},
  };
}

Graph GraphOf(const Case& of) {
  GraphBuilder b(31);
  const int in = b.Relu(b.Submanifold(0, 40, true));
  // The convolution reads rows in the features' type, and the layer norm keeps them small.
  return b.Finish(b.Linear(b.Submanifold(LayerNorm(b, b.Submanifold(of.add(b, in), 24, true)), 32, true), 5, true));
}

TEST(MlpFusionTest, FusesWhatTheKernelComputes) {
  for (const Case& of : FusedCases()) {
    SCOPED_TRACE(of.name);
    const Graph graph = GraphOf(of);
    const Size before = SizeOf(graph, /*fuses_mlps=*/false), after = SizeOf(graph, /*fuses_mlps=*/true);
    EXPECT_EQ(before.steps - after.steps, of.steps_saved);
    EXPECT_GT(before.buffers_of_hidden_values, 0);
    EXPECT_EQ(after.buffers_of_hidden_values, 0);
  }
}

TEST(MlpFusionTest, LeavesOtherLayersAsTheyAre) {
  for (const Case& of : OtherCases()) {
    SCOPED_TRACE(of.name);
    const Graph graph = GraphOf(of);
    const Size before = SizeOf(graph, /*fuses_mlps=*/false), after = SizeOf(graph, /*fuses_mlps=*/true);
    EXPECT_EQ(before.steps, after.steps);
    EXPECT_EQ(before.buffers_of_hidden_values, after.buffers_of_hidden_values);
  }
}

TEST(MlpFusionTest, OutputsOfTheHeadsTypeAreNotFused) {
  GraphBuilder b(32);
  const int in = b.Submanifold(0, 40, true);
  const Graph graph = b.Finish(b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 5, true));
  EXPECT_EQ(SizeOf(graph, true).steps, SizeOf(graph, false).steps);
}

// Products that read one value are merged, but not those of an MLP, nor what an MLP reads.
TEST(MlpFusionTest, PartsAreNotMergedWithOtherProducts) {
  const auto steps = [](bool fuses_mlps, bool merges_products) {
    GraphBuilder b(33);
    const int in = b.Submanifold(0, 40, true);
    const int y = b.Linear(Gelu(b, b.Linear(in, kHidden, true)), 40, true);
    const int q = b.Relu(b.Linear(in, 16, true)), k = b.Relu(b.Linear(in, 24, true));
    const int sum = b.Concat({b.Submanifold(y, 8, true), b.Submanifold(q, 8, true), b.Submanifold(k, 8, true)});
    return SizeOf(b.Finish(b.Linear(b.Submanifold(sum, 8, true), 5, true)), fuses_mlps, merges_products).steps;
  };
  EXPECT_EQ(steps(false, false) - steps(false, true), 1);
  EXPECT_EQ(steps(true, false) - steps(true, true), 1);
  EXPECT_EQ(steps(false, true) - steps(true, true), 1);
}

// A product in 8 bits has a step of its own. An MLP in floats reads and makes floats, also where other layers in 8 bits
// read the same values.
TEST(MlpFusionTest, ProductsIn8BitsAreNotFused) {
  GraphBuilder b(35);
  const int in = b.Relu(b.Submanifold(0, 40, true));
  const int first = b.Linear(in, kHidden, true), second = b.Linear(b.Relu(first), 40, true);
  const int both = b.Concat({second, b.Submanifold(in, 40, true)});
  Graph graph = b.Finish(b.Linear(b.Submanifold(both, 32, true), 5, true));
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    graph.nodes[static_cast<size_t>(value.node)].scale = 0.125f;
  }
  const auto name = [&](int node) { return graph.nodes[static_cast<size_t>(node)].name; };
  const auto count_mlps = [&](const std::vector<std::string>& float_nodes) {
    const Program program = Compile(
        graph, Plan(),
        {.on_cuda = true, .dtype = DType::kFloat16, .fuses_mlps = true, .is_int8 = true, .float_nodes = float_nodes});
    return std::count_if(program.steps.begin(), program.steps.end(),
                         [](const auto& step) { return dynamic_cast<const MlpStep*>(step.get()) != nullptr; });
  };
  EXPECT_EQ(count_mlps({}), 0);
  EXPECT_EQ(count_mlps({name(first)}), 0);
  EXPECT_EQ(count_mlps({name(second)}), 0);
  EXPECT_EQ(count_mlps({name(first), name(second)}), 1);
}

TEST(MlpFusionTest, HasTheSameResultAsItsLayers) {
  SKIP_WITHOUT(support::Device::kCuda);
  const FusionDevices devices(34);
  ASSERT_TRUE(devices.are_ready());
  for (const Case& of : FusedCases()) {
    SCOPED_TRACE(of.name);
    const Graph graph = GraphOf(of);
    const std::vector<float> expected = devices.ScoresOnCpu(graph);
    for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
      for (const bool fuses_mlps : {false, true}) {
        SCOPED_TRACE(fuses_mlps ? "fused" : "layer by layer");
        const std::vector<float> scores = ScoresOf(*devices.gpu, graph,
                                                   {.device = support::Device::kCuda,
                                                    .precision = precision,
                                                    .plan = DefaultPlanOf(support::Device::kCuda, precision),
                                                    .fuses_mlps = fuses_mlps},
                                                   devices.cloud);
        ExpectNear(scores, expected, precision == ModelConfig::Precision::kFloat16 ? 1e-2 : 8e-2);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::mlp_fusion_test
