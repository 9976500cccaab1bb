// Tests which layer norms and rotaries become part of the step before them (layer_fusion.h), and that the results stay
// those of separate steps. shortcut_fusion_test.cc tests shortcuts, and mlp_fusion_test.cc MLPs.

#include "engine/compiler/layer_fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_values.h"
#include "engine/compiler/product_merging.h"
#include "engine/ops/mlp/mlp.h"
#include "engine/ops/rows/linear.h"
#include "engine/ops/rows/rotary.h"
#include "engine/ops/rows/row_norm.h"
#include "tests/engine/executor/company.h"
#include "tests/engine/executor/fusion_testing.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve::layer_fusion_test {
namespace {

using kernels::GroupTail;

template <typename StepType>
int Count(const Program& program) {
  return static_cast<int>(std::count_if(program.steps.begin(), program.steps.end(), [](const auto& step) {
    return dynamic_cast<const StepType*>(step.get()) != nullptr;
  }));
}

CompileTarget Half() {
  return {.on_cuda = true, .dtype = DType::kFloat16, .merges_products = true, .rotates_products = true};
}

// ---- layer norms

int LayerNorm(GraphBuilder& b, int input) { return b.RowNorm(input, kernels::RowNorm::kLayerNorm, 1e-5f, true); }

// A part of a network. add: adds the part behind `in`, which has 12 channels, and returns the result.
struct NormCase {
  std::string name;
  std::function<int(GraphBuilder& b, int in)> add;
  int num_steps;  // of norms
};

std::vector<NormCase> NormCases() {
  return {
      {"behind a sum, as in a transformer's block",
       [](GraphBuilder& b, int in) {
         const int sum = b.Sum(LayerNorm(b, b.Submanifold(in, 12, true)), in);
         return b.Sum(b.Linear(LayerNorm(b, sum), 12, true), sum);
       },
       1},
      {"that alone reads the first", [](GraphBuilder& b, int in) { return LayerNorm(b, LayerNorm(b, in)); }, 1},
      {"of an activation", [](GraphBuilder& b, int in) { return LayerNorm(b, b.Relu(LayerNorm(b, in))); }, 1},
      {"three in a row", [](GraphBuilder& b, int in) { return LayerNorm(b, LayerNorm(b, LayerNorm(b, in))); }, 2},
      {"four in a row",
       [](GraphBuilder& b, int in) { return LayerNorm(b, LayerNorm(b, LayerNorm(b, LayerNorm(b, in)))); }, 2},
      {"two of one",
       [](GraphBuilder& b, int in) {
         const int first = LayerNorm(b, in);
         return b.Concat({LayerNorm(b, first), LayerNorm(b, first), first});
       },
       2},
      {"whose sum is fused into it", [](GraphBuilder& b, int in) { return b.Sum(LayerNorm(b, LayerNorm(b, in)), in); },
       2},
      {"with an activation", [](GraphBuilder& b, int in) { return b.Relu(LayerNorm(b, LayerNorm(b, in))); }, 2},
      {"of another kind",
       [](GraphBuilder& b, int in) { return b.RowNorm(LayerNorm(b, in), kernels::RowNorm::kL2, 1e-6f); }, 2},
      {"of a norm of another kind",
       [](GraphBuilder& b, int in) { return LayerNorm(b, b.RowNorm(in, kernels::RowNorm::kSoftmax)); }, 2},
      {"of a sum that another step adds",
       [](GraphBuilder& b, int in) {
         const int first = LayerNorm(b, in), later = b.Submanifold(in, 12, true);
         return LayerNorm(b, b.Sum(first, later));
       },
       2},
  };
}

Graph GraphOf(const NormCase& norms) {
  GraphBuilder b(41);
  const int in = b.Submanifold(0, 12, true);
  return b.Finish(b.Linear(b.Linear(norms.add(b, in), 12, true), 5, true));
}

TEST(NormFusionTest, AStepComputesASecondNorm) {
  for (const NormCase& norms : NormCases()) {
    const Graph graph = GraphOf(norms);
    EXPECT_EQ(Count<RowNormStep>(Compile(graph, Plan(), Half())), norms.num_steps) << norms.name;
    EXPECT_EQ(Count<RowNormStep>(Compile(graph, Plan(), {})), norms.num_steps) << norms.name;
  }
}

// What only the head reads is float32, and a step's two norms have one type.
TEST(NormFusionTest, ResultOfTheHeadsTypeIsNotFused) {
  GraphBuilder b(42);
  const Graph graph = b.Finish(LayerNorm(b, LayerNorm(b, b.Submanifold(0, 5, true))));
  EXPECT_EQ(Count<RowNormStep>(Compile(graph, Plan(), Half())), 2);
}

// An MLP takes the norms before and behind it first; of the norms that are left, pairs are made.
TEST(NormFusionTest, MlpsTakeTheirNormsFirst) {
  struct MlpCase {
    std::string name;
    int norms_before, norms_behind;
    int norm_steps;   // beside the MLP
    int norms_alone;  // steps of norms without MLPs
  };
  for (const MlpCase& of : std::vector<MlpCase>{
           {"one before", 1, 0, 0, 1},
           {"two before: the second is the MLP's", 2, 0, 1, 1},
           {"three before: the first two are a pair", 3, 0, 1, 2},
           {"three behind are the MLP's", 0, 3, 0, 2},
           {"four behind: the fourth reads a norm, but not a step of norms", 0, 4, 1, 2},
           {"five behind: the last two are a pair", 0, 5, 1, 3},
           {"before and behind", 3, 5, 2, 5},
       }) {
    SCOPED_TRACE(of.name);
    GraphBuilder b(49);
    int rows = b.Submanifold(0, 24, true);
    for (int i = 0; i < of.norms_before; ++i) rows = LayerNorm(b, rows);
    rows = b.Linear(b.Activation(b.Linear(rows, 64, true), kernels::ActivationFunction::kGelu), 24, true);
    for (int i = 0; i < of.norms_behind; ++i) rows = LayerNorm(b, rows);
    const Graph graph = b.Finish(b.Linear(b.Submanifold(rows, 12, true), 5, true));
    CompileTarget target = Half();
    EXPECT_EQ(Count<RowNormStep>(Compile(graph, Plan(), target)), of.norms_alone);
    target.fuses_mlps = true;
    const Program program = Compile(graph, Plan(), target);
    EXPECT_EQ(Count<MlpStep>(program), 1);
    EXPECT_EQ(Count<RowNormStep>(program), of.norm_steps);
    for (const Buffer& buffer : program.buffers) EXPECT_GE(buffer.first_step, 0) << "no step writes a buffer";
  }
}

// Each norm is computed once: the layers that a step computes beside its own are those that no other step computes.
TEST(NormFusionTest, NoNormIsInTwoSteps) {
  GraphBuilder b(50);
  int trunk = b.Submanifold(0, 24, true);
  for (int block = 0; block < 2; ++block) {
    const int sum = b.Sum(LayerNorm(b, b.Linear(trunk, 24, true)), trunk);
    const int attended = b.Sum(b.Submanifold(LayerNorm(b, sum), 24, true), sum);
    const int hidden = b.Activation(b.Linear(LayerNorm(b, attended), 64, true), kernels::ActivationFunction::kGelu);
    trunk = LayerNorm(b, LayerNorm(b, b.Sum(b.Linear(hidden, 24, true), attended)));
  }
  const Graph graph = b.Finish(b.Linear(b.Submanifold(trunk, 12, true), 5, true));
  Layers layers(graph);
  FuseMlps([](int) { return false; }, layers);
  FuseNorms(layers);
  std::vector<int> num_steps(static_cast<size_t>(layers.size()));  // that compute a layer
  for (int index = 0; index < layers.size(); ++index) {
    const Layer& layer = layers.At(index);
    if (layer.is_in_mlp || layer.is_computed_by_other) continue;
    for (const int part : layer.mlp ? layer.mlp->All() : std::vector<int>{index})
      ++num_steps[static_cast<size_t>(part)];
    if (layer.second_norm >= 0) ++num_steps[static_cast<size_t>(layer.second_norm)];
  }
  for (const int steps : num_steps) EXPECT_EQ(steps, 1);
  CompileTarget target = Half();
  target.fuses_mlps = true;
  const Program program = Compile(graph, Plan(), target);
  EXPECT_EQ(Count<MlpStep>(program), 2);
  EXPECT_EQ(Count<RowNormStep>(program), 2) << "a pair for each block";
}

class NormFusionDeviceTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, NormFusionDeviceTest, support::AllDevices(), support::DeviceName);

// On a CPU the comparison includes the values of both norms.
TEST_P(NormFusionDeviceTest, EqualsTheInterpreter) {
  for (const NormCase& norms : NormCases()) {
    SCOPED_TRACE(norms.name);
    ExpectEqual(GetParam(), GraphOf(norms), RandomScan(43));
    if (HasFatalFailure()) return;
  }
}

// ---- rotaries

struct RotaryCase {
  std::string name;
  std::function<int(GraphBuilder& b, int in)> add;  // as in NormCase
  int num_rotaries;                                 // steps that are left
  int num_tables;
  int num_products;  // without the head's
};

struct Bases {
  float queries, keys;
};

// Adds attention within groups. prepare: what is done to queries and keys before they are rotated.
int Attend(
    GraphBuilder& b, int in, const Bases& bases = {100, 100}, int positions = -1,
    const std::function<int(int)>& prepare = [](int rows) { return rows; }) {
  const int queries = b.Rotary(prepare(b.Linear(in, 12, true)), 2, bases.queries, positions);
  const int keys = b.Rotary(prepare(b.Linear(in, 12, false)), 2, bases.keys, positions);
  const int groups = b.Groups(in, kernels::Curve::kHilbert, 0, 8, GroupTail::kBorrows);
  return b.GroupAttention(queries, keys, b.Linear(in, 12, true), groups, 2, 0.6f);
}

int Rotated(GraphBuilder& b, int in, int num_heads = 2) { return b.Rotary(b.Linear(in, 12, true), num_heads, 100); }

std::vector<RotaryCase> RotaryCases() {
  return {
      {"by coordinates", [](GraphBuilder& b, int in) { return Attend(b, in); }, 0, 1, 1},
      {"by positions",
       [](GraphBuilder& b, int in) {
         const int mean = b.SitePosition({.is_mean = true, .scale = {20, 20, 10}});
         return Attend(b, b.Linear(in, 12, true), {10, 10}, mean);
       },
       0, 1, 2},
      {"within a sample",
       [](GraphBuilder& b, int in) {
         return b.Attention(Rotated(b, in), Rotated(b, in), b.Linear(in, 12, true), 2, 0.5f);
       },
       0, 1, 1},
      {"behind batch norms",
       [](GraphBuilder& b, int in) {
         return Attend(b, in, {100, 100}, -1, [&](int rows) { return b.Norm(rows); });
       },
       0, 1, 1},
      {"of two blocks, which share the angles",
       [](GraphBuilder& b, int in) { return Attend(b, b.Linear(Attend(b, in), 12, true)); }, 0, 1, 3},
      {"of two blocks with other bases",
       [](GraphBuilder& b, int in) {
         return Attend(b, b.Linear(Attend(b, in), 12, true), {10, 10});
       },
       0, 2, 3},
      {"of other bases for queries and keys, which are not one product then",
       [](GraphBuilder& b, int in) {
         return Attend(b, in, {100, 10});
       },
       0, 2, 2},
      {"of one linear layer for queries and keys",
       [](GraphBuilder& b, int in) {
         const int rotated = Rotated(b, in);
         return b.Attention(rotated, rotated, in, 2, 0.5f);
       },
       0, 1, 1},
      {"beside keys that are not rotated",
       [](GraphBuilder& b, int in) { return b.Attention(Rotated(b, in), b.Linear(in, 12, true), in, 2, 0.5f); }, 1, 0,
       2},
      {"that another layer reads",
       [](GraphBuilder& b, int in) {
         const int queries = Rotated(b, in);
         return b.Sum(b.Attention(queries, Rotated(b, in), in, 2, 0.5f), queries);
       },
       2, 0, 1},
      {"of a product that another layer reads",
       [](GraphBuilder& b, int in) {
         const int product = b.Linear(in, 12, true);
         return b.Sum(b.Attention(b.Rotary(product, 2, 100), Rotated(b, in), in, 2, 0.5f), product);
       },
       2, 0, 2},
      {"of the values too",
       [](GraphBuilder& b, int in) {
         const int keys = Rotated(b, in);
         return b.Attention(Rotated(b, in), keys, keys, 2, 0.5f);
       },
       2, 0, 1},
      {"of other heads than the attention's",
       [](GraphBuilder& b, int in) { return b.Attention(Rotated(b, in, 1), Rotated(b, in, 1), in, 2, 0.5f); }, 2, 0, 1},
      {"of an activation",
       [](GraphBuilder& b, int in) {
         return Attend(b, in, {100, 100}, -1, [&](int rows) { return b.Relu(rows); });
       },
       2, 0, 2},
      {"of a sum",
       [](GraphBuilder& b, int in) {
         return Attend(b, in, {100, 100}, -1, [&](int rows) { return b.Sum(rows, in); });
       },
       2, 0, 3},
      {"of a convolution",
       [](GraphBuilder& b, int in) {
         const int queries = b.Rotary(b.Submanifold(in, 12, true), 2, 100);
         return b.Attention(queries, Rotated(b, in), in, 2, 0.5f);
       },
       2, 0, 1},
      {"by positions that come after the input",
       [](GraphBuilder& b, int in) {
         return Attend(b, in, {100, 100}, b.Linear(in, 3, true));
       },
       2, 0, 2},
  };
}

Graph GraphOf(const RotaryCase& rotaries) {
  GraphBuilder b(44);
  b.Floor();
  const int in = b.Submanifold(0, 12, true);
  return b.Finish(b.Linear(b.Relu(b.Norm(rotaries.add(b, in))), 5, true));
}

TEST(RotaryFusionTest, ProductsRotateWhatAttentionReads) {
  for (const RotaryCase& rotaries : RotaryCases()) {
    SCOPED_TRACE(rotaries.name);
    const Graph graph = GraphOf(rotaries);
    const Program fused = Compile(graph, Plan(), Half());
    EXPECT_EQ(Count<RotaryStep>(fused), rotaries.num_rotaries);
    EXPECT_EQ(Count<RotaryAnglesStep>(fused), rotaries.num_tables);
    EXPECT_EQ(Count<LinearStep>(fused), rotaries.num_products + 1);
    for (const Buffer& buffer : fused.buffers) EXPECT_GE(buffer.first_step, 0) << "no step writes a buffer";
  }
}

// Products of other types and of the CPU, and those of GPUs without tensor cores, leave rotaries alone.
TEST(RotaryFusionTest, OnlyAGpuIn16BitsRotatesProducts) {
  for (const RotaryCase& rotaries : RotaryCases()) {
    SCOPED_TRACE(rotaries.name);
    const Graph graph = GraphOf(rotaries);
    const auto num_nodes = std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const GraphNode& node) {
      return std::holds_alternative<RotaryOp>(node.op);
    });
    CompileTarget target = Half();
    target.rotates_products = false;
    for (const CompileTarget& other :
         {target, CompileTarget{.on_cuda = true, .rotates_products = true}, CompileTarget()}) {
      const Program program = Compile(graph, Plan(), other);
      EXPECT_EQ(Count<RotaryStep>(program), num_nodes);
      EXPECT_EQ(Count<RotaryAnglesStep>(program), 0);
    }
  }
}

// A product in 8 bits rotates nothing. Positions in 8 bits are converted for the table of angles.
TEST(RotaryFusionTest, ProductsIn8BitsRotateNothing) {
  GraphBuilder b(51);
  b.Floor();
  const int in = b.Relu(b.Submanifold(0, 16, true));
  const int positions = b.Linear(in, 3, true);
  const int rows = b.Linear(in, 12, true);
  const int queries = b.Linear(rows, 12, true), keys = b.Linear(rows, 12, true);
  const int attention =
      b.Attention(b.Rotary(queries, 2, 10, positions), b.Rotary(keys, 2, 10, positions), rows, 2, 0.5f);
  const int both = b.Concat({attention, b.Submanifold(positions, 16, true)});
  Graph graph = b.Finish(b.Linear(b.Submanifold(both, 8, true), 5, true));
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    graph.nodes[static_cast<size_t>(value.node)].scale = 0.125f;
  }
  const auto name = [&](int node) { return graph.nodes[static_cast<size_t>(node)].name; };
  CompileTarget target = Half();
  target.is_int8 = true;
  for (const bool is_float : {false, true}) {
    target.float_nodes = is_float ? std::vector{name(queries), name(keys)} : std::vector{name(queries)};
    const Program program = Compile(graph, Plan(), target);
    EXPECT_EQ(Count<RotaryStep>(program), is_float ? 0 : 2);
    EXPECT_EQ(Count<RotaryAnglesStep>(program), is_float ? 1 : 0);
    for (const auto& step : program.steps) {
      const auto* const angles = dynamic_cast<const RotaryAnglesStep*>(step.get());
      if (angles == nullptr) continue;
      const int buffer = angles->options().positions.buffer;
      EXPECT_EQ(program.buffers[static_cast<size_t>(buffer)].dtype, DType::kFloat16);
    }
  }
}

// A row's result of a product, and a rotation of it by definition (kernels/rows/rotary.h). angles: [pairs of a head].
std::vector<double> RowOf(const FoldedProduct& product, const std::vector<double>& in) {
  std::vector<double> row(product.weights.size() / in.size());
  for (size_t o = 0; o < row.size(); ++o) {
    row[o] = product.bias.empty() ? 0 : product.bias[o];
    for (size_t i = 0; i < in.size(); ++i) row[o] += product.weights[o * in.size() + i] * in[i];
  }
  return row;
}
void Rotate(double& u, double& v, double angle) {
  const double rotated = u * std::cos(angle) - v * std::sin(angle);
  v = v * std::cos(angle) + u * std::sin(angle);
  u = rotated;
}

// The rotated neighbours of a folded product are the rotated pairs of the original one, in other places, which are the
// same for queries and keys. Merged, they stand before the values.
TEST(RotaryFusionTest, PairsStandBesideEachOther) {
  const auto none = [](int) { return false; };
  std::mt19937 random(45);
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (const int dimension : {2, 3}) {
    for (const int num_heads : {1, 2, 3}) {
      for (const size_t pairs : {1u, 3u, 4u}) {
        SCOPED_TRACE(testing::Message() << dimension << " axes, " << num_heads << " heads, " << pairs << " pairs");
        const int channels = num_heads * dimension * 2 * static_cast<int>(pairs);
        GraphBuilder b(46, kernels::CoordinateRule::kFloor, dimension);
        const int in = b.Submanifold(0, 7, true), values = b.Linear(in, channels, false);
        const int queries = b.Rotary(b.Norm(b.Linear(in, channels, true)), num_heads, 10);
        const int keys = b.Rotary(b.Linear(in, channels, false), num_heads, 10);
        const Graph graph = b.Finish(b.Linear(b.Attention(queries, keys, values, num_heads, 1), 3, true));

        Layers layers(graph);
        const Layers original(graph);
        FuseRotaries(none, layers);
        MergeProducts(none, layers);
        const Layer& merged = layers.At(layers.size() - 1);
        ASSERT_EQ(merged.members.size(), 3u);
        std::vector<double> row(7);
        for (double& value : row) value = uniform(random);
        std::vector<double> angles(static_cast<size_t>(dimension) * pairs);
        for (double& angle : angles) angle = uniform(random);
        std::vector<double> all = RowOf(FoldProduct(layers, merged), row);
        ASSERT_EQ(all.size(), 3 * static_cast<size_t>(channels));
        for (size_t pair = 0; pair < static_cast<size_t>(channels); ++pair) {
          Rotate(all[2 * pair], all[2 * pair + 1], angles[pair % angles.size()]);
        }
        for (size_t m = 0; m < 3; ++m) {
          const int member = merged.members[m];
          EXPECT_EQ(layers.At(member).rotary >= 0, m < 2);
          EXPECT_EQ(layers.At(member).column, static_cast<int>(m) * channels);
          std::vector<double> expected = RowOf(FoldProduct(original, original.At(member)), row);
          for (size_t c = 0; c < expected.size() && m < 2; ++c) {
            const size_t chunk = c / (2 * pairs), j = c % (2 * pairs);
            if (j < pairs)
              Rotate(expected[c], expected[c + pairs], angles[chunk % static_cast<size_t>(dimension) * pairs + j]);
          }
          for (size_t c = 0; c < expected.size(); ++c) {
            const size_t place = m < 2 ? PairedChannel(c, pairs) : c;
            EXPECT_NEAR(all[m * expected.size() + place], expected[c], 1e-5) << "member " << m << ", channel " << c;
          }
        }
      }
    }
  }
}

// Returns the largest difference of scores, NaN if one is not a number.
double LargestDifference(const BatchReport& report, absl::Span<const float> expected) {
  double largest = 0;
  for (const InferResult& sample : report.samples) {
    EXPECT_EQ(sample.scores().size(), expected.size());
    for (size_t i = 0; i < std::min(expected.size(), sample.scores().size()); ++i) {
      const double difference = std::abs(double{sample.scores()[i]} - expected[i]);
      if (std::isnan(difference)) return difference;
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

// Products that rotate are as near to the CPU's float32 as rotaries of their own, or nearly so.
TEST(RotaryFusionTest, IsAsExactAsRotariesOfTheirOwn) {
  SKIP_WITHOUT(support::Device::kCuda);
  const FusionDevices devices(47);
  ASSERT_TRUE(devices.are_ready());
  if (!LinearStep::CanRotate(DType::kFloat16)) GTEST_SKIP() << "this GPU's products rotate nothing";
  for (const RotaryCase& rotaries : RotaryCases()) {
    SCOPED_TRACE(rotaries.name);
    const Graph graph = GraphOf(rotaries);
    const auto on_cpu = devices.cpu->Compile(graph, {.device = support::Device::kCpu});
    ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
    const BatchReport expected = devices.cpu->Run(*on_cpu, {&devices.cloud}, true);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    double largest_score = 0;
    for (const float score : expected.samples[0].scores()) {
      largest_score = std::max(largest_score, std::abs(double{score}));
    }
    for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kBfloat16}) {
      const bool is_half = precision == ModelConfig::Precision::kFloat16;
      SCOPED_TRACE(is_half ? "float16" : "bfloat16");
      double differences[2];
      for (const bool rotates : {false, true}) {
        const auto program = devices.gpu->Compile(graph, {.device = support::Device::kCuda,
                                                          .precision = precision,
                                                          .plan = DefaultPlanOf(support::Device::kCuda, precision),
                                                          .rotates_products = rotates});
        ASSERT_TRUE(program.ok()) << program.status();
        EXPECT_EQ(Count<RotaryStep>(*program) == 0, rotates && rotaries.num_rotaries == 0);
        const BatchReport output = devices.gpu->Run(*program, {&devices.cloud, &devices.cloud}, true);
        ASSERT_TRUE(output.status.ok()) << output.status;
        differences[rotates ? 1 : 0] = LargestDifference(output, expected.samples[0].scores());
      }
      const double roundoff = is_half ? 0x1p-11 : 0x1p-8;
      EXPECT_LE(differences[0], 100 * roundoff * largest_score);
      EXPECT_LE(differences[1], 2 * differences[0] + 4 * roundoff * largest_score);
    }
  }
}

// Groups of 8 sites, of one sample and of several, with norms and rotaries inside other steps.
TEST_P(NormFusionDeviceTest, ABatchMateChangesNoByte) {
  GraphBuilder b(48);
  b.Floor();
  int trunk = b.Submanifold(0, 12, true);
  for (int block = 0; block < 2; ++block) {
    const int sum = b.Sum(LayerNorm(b, b.Submanifold(trunk, 12, true)), trunk);
    const auto product = [&](int of) { return b.Submanifold(of, 12, true); };
    const int norm = LayerNorm(b, sum);
    const int attention =
        GetParam() == support::Device::kCuda
            ? Attend(b, norm)
            : b.GroupAttention(b.Rotary(product(norm), 2, 100), b.Rotary(product(norm), 2, 100), product(norm),
                               b.Groups(norm, kernels::Curve::kHilbert, 0, 8, GroupTail::kBorrows), 2, 0.6f);
    trunk = b.Sum(b.Submanifold(attention, 12, true), sum);
  }
  const Graph graph = b.Finish(b.Submanifold(trunk, 3, true));
  std::vector<PointCloud> clouds;
  for (const int num_sites : {0, 1, 7, 8, 9, 15, 16, 17, 120}) {
    clouds.push_back(CloudOf(PointsOn(num_sites, kShape, static_cast<uint32_t>(num_sites))));
  }
  ExpectSameInCompany(GetParam(), graph, clouds, {{0, 1, 2, 3}, {8, 4}, {7, 8, 6}, {5, 3, 8, 1, 2}});
}

}  // namespace
}  // namespace voxserve::layer_fusion_test
