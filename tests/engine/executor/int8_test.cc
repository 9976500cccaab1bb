// Tests networks in 8 bits on the CPU: against the same network in double whose weights and values are rounded to the
// same whole numbers, alone and in batches, by one thread and by several, and what the compiler stores in 8 bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/compiler/int8_types.h"
#include "engine/compiler/int8_values.h"
#include "engine/ops/int8/int8_conv.h"
#include "engine/ops/int8/int8_conversion.h"
#include "engine/ops/int8/int8_linear.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_interpreter.h"
#include "tests/engine/executor/random_points.h"
#include "tests/engine/executor/same_bytes.h"

namespace voxserve::int8_test {
namespace {

const Variant kInt8 = {.name = "Int8", .precision = ModelConfig::Precision::kInt8};

GraphNode& At(Graph& graph, int node) { return graph.nodes[static_cast<size_t>(node)]; }
const GraphNode& At(const Graph& graph, int node) { return graph.nodes[static_cast<size_t>(node)]; }

// Gives each value that a layer may read in 8 bits a scale, by its largest magnitude on these points.
void AddScales(Graph& graph, const Points& points) {
  Interpreter interpreter(graph, points);
  for (const Int8Value& value : FindInt8Candidates(graph).values) {
    double largest = 0;
    for (const auto& [site, row] : interpreter.Evaluate(value.node)) {
      for (const double number : row) largest = std::max(largest, std::abs(number));
    }
    At(graph, value.node).scale = static_cast<float>(largest / (value.is_non_negative ? 255 : 127));
  }
}

double Rounded(double value, double scale, bool is_unsigned) {
  const double whole = std::nearbyint(value / scale);
  return scale * (is_unsigned ? std::clamp(whole, 0.0, 255.0) : std::clamp(whole, -127.0, 127.0));
}

// The convolution of a residual block and the block's shortcut. Their weights have one scale for each output channel.
struct FusedPair {
  int conv = -1;
  int shortcut = -1;
};

// Returns the graph with the weights of its products rounded to 127 numbers of either sign for each output channel,
// after the weights have been multiplied by the scales of their inputs.
Graph WithRoundedWeights(Graph graph, const std::vector<std::string>& float_nodes, const FusedPair& pair = {}) {
  std::map<int, std::vector<double>> largest_of;  // by node, for each output channel
  for (const bool rounds : {false, true}) {
    for (const Int8Layer& layer : FindInt8Candidates(graph).layers) {
      GraphNode& node = At(graph, layer.first_node);
      if (std::find(float_nodes.begin(), float_nodes.end(), node.name) != float_nodes.end()) continue;
      const bool is_unsigned = std::all_of(layer.inputs.begin(), layer.inputs.end(), [&](int input) {
        const std::vector<Int8Value> values = FindInt8Candidates(graph).values;
        return std::any_of(values.begin(), values.end(),
                           [&](const Int8Value& value) { return value.node == input && value.is_non_negative; });
      });
      std::vector<double> scales;
      for (const int input : layer.inputs) {
        const std::vector<Int8Value> values = FindInt8Candidates(graph).values;
        const auto found =
            std::find_if(values.begin(), values.end(), [&](const Int8Value& v) { return v.node == input; });
        const double scale = At(graph, input).scale * (found->is_non_negative && !is_unsigned ? 255.0 / 127 : 1.0);
        scales.insert(scales.end(), static_cast<size_t>(At(graph, input).channels), scale);
      }
      auto* const conv = std::get_if<SparseConvOp>(&node.op);
      auto* const linear = std::get_if<LinearOp>(&node.op);
      auto* const image = std::get_if<Conv2dOp>(&node.op);
      HostTensorPtr& stored = conv != nullptr ? conv->weight : linear != nullptr ? linear->weight : image->weight;
      HostTensor weight = *stored;
      const size_t outs = static_cast<size_t>(node.channels), ins = scales.size();
      const size_t cells = weight.values.size() / outs / ins;
      const bool ends_with_outs = conv != nullptr || (image != nullptr && image->geometry.is_transposed);
      // Weights are [cells, in, out], or [out, in] or [out, in, cells], or [in, out, cells].
      const auto out_of = [&](size_t i) {
        const size_t matrix = conv != nullptr ? i : i / cells;
        return ends_with_outs ? matrix % outs : matrix / ins;
      };
      const auto in_of = [&](size_t i) {
        const size_t matrix = conv != nullptr ? i : i / cells;
        return ends_with_outs ? matrix / outs % ins : matrix % ins;
      };
      std::vector<double>& largest = largest_of[layer.first_node];
      largest.resize(outs);
      for (size_t i = 0; i < weight.values.size(); ++i) {
        largest[out_of(i)] = std::max(largest[out_of(i)], std::abs(weight.values[i] * scales[in_of(i)]));
      }
      if (!rounds) continue;
      for (const int other : {pair.conv, pair.shortcut}) {
        if (layer.first_node != pair.conv && layer.first_node != pair.shortcut) break;
        for (size_t o = 0; o < outs; ++o) largest[o] = std::max(largest[o], largest_of[other][o]);
      }
      for (size_t i = 0; i < weight.values.size(); ++i) {
        const double scaled = weight.values[i] * scales[in_of(i)];
        weight.values[i] =
            static_cast<float>(Rounded(scaled, largest[out_of(i)] / 127, /*is_unsigned=*/false) / scales[in_of(i)]);
      }
      stored = std::make_shared<const HostTensor>(std::move(weight));
    }
  }
  return graph;
}

std::vector<float> ScoresOf(const Graph& graph, const Points& points, const Variant& variant, int num_threads = 2) {
  const auto runner = DeviceRunner::Create({.num_threads = num_threads});
  if (!runner.ok()) return {};
  const auto program = (*runner)->Compile(graph, variant);
  if (!program.ok()) return {};
  const PointCloud cloud = CloudOf(points);
  const BatchReport output = (*runner)->Run(*program, {&cloud}, /*return_scores=*/true);
  EXPECT_TRUE(output.status.ok()) << output.status;
  if (!output.status.ok()) return {};
  const absl::Span<const float> scores = output.samples[0].scores();
  return {scores.begin(), scores.end()};
}

// Expects the scores that the network has in double, if each value of `rounded` is rounded to its whole numbers, as are
// the weights of all layers but float_nodes.
void ExpectRoundedScores(const Graph& graph, const Points& points, const std::vector<int>& rounded,
                         const std::vector<std::string>& float_nodes = {}, const FusedPair& pair = {}) {
  Variant variant = kInt8;
  variant.float_nodes = float_nodes;
  const std::vector<float> scores = ScoresOf(graph, points, variant);
  const Graph exact = WithRoundedWeights(graph, float_nodes, pair);
  Interpreter interpreter(exact, points);
  const std::vector<Int8Value> values = FindInt8Candidates(graph).values;
  interpreter.EditValues([&](int node, Values& rows) {
    if (std::find(rounded.begin(), rounded.end(), node) == rounded.end()) return;
    const auto value = std::find_if(values.begin(), values.end(), [&](const Int8Value& v) { return v.node == node; });
    ASSERT_NE(value, values.end()) << At(graph, node).name;
    for (auto& [site, row] : rows) {
      for (double& number : row) number = Rounded(number, At(graph, node).scale, value->is_non_negative);
    }
  });
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(scores.size(), points.size() * classes);
  double largest = 0, difference = 0;
  for (size_t point = 0; point < points.size(); ++point) {
    const std::optional<std::vector<double>> expected =
        interpreter.EvaluateAt(At(graph, graph.scores_output).inputs[0], point);
    ASSERT_TRUE(expected.has_value());
    for (size_t c = 0; c < classes; ++c) {
      largest = std::max(largest, std::abs((*expected)[c]));
      difference = std::max(difference, std::abs((*expected)[c] - scores[point * classes + c]));
    }
  }
  EXPECT_LE(difference, 1e-5 * largest);
  // Without rounding, the scores are others: the test would notice a network in float32.
  const std::vector<float> unrounded = ScoresOf(graph, points, {.name = "Float32"});
  double effect = 0;
  for (size_t i = 0; i < scores.size(); ++i) effect = std::max(effect, double{std::abs(scores[i] - unrounded[i])});
  EXPECT_GE(effect, 1e-4 * largest);
  EXPECT_LE(effect, 0.2 * largest);
}

// A small U-Net with residual blocks, a shortcut and a concatenation, as MinkUNet has them.
struct UNet {
  Graph graph;
  Points points = RandomPoints(7);
  std::vector<int> values;  // that are read in 8 bits
  std::string stem, head;

  explicit UNet(bool has_relu) {
    GraphBuilder b(11);
    const auto relu = [&](int node) { return has_relu ? b.Relu(node) : node; };
    const int first = b.Submanifold(0, 6, false);
    const int a = relu(b.Norm(b.Submanifold(relu(b.Norm(first)), 6, false)));
    const int block = relu(b.Sum(b.Norm(b.Submanifold(relu(b.Norm(b.Submanifold(a, 6, false))), 6, false)), a));
    const int down_conv = b.Down(block, 12);
    const int down = relu(b.Norm(down_conv));
    const int wide = b.Norm(b.Linear(down, 20, false));
    const int inner = relu(b.Norm(b.Submanifold(down, 20, false)));
    const int deep = relu(b.Sum(b.Norm(b.Submanifold(inner, 20, false)), wide));
    const int up = relu(b.Norm(b.Up(deep, down_conv, 10)));
    const int conv = relu(b.Submanifold(b.Concat({up, block}), 9, true));
    const int last = b.Linear(conv, 5, true);
    graph = b.Finish(last);
    stem = At(graph, first).name;
    head = At(graph, last).name;
    AddScales(graph, points);
    for (const Int8Value& value : FindInt8Candidates(graph).values) values.push_back(value.node);
  }
};

TEST(Int8NetworkTest, AUNetHasTheScoresOfItsWholeNumbers) {
  const UNet unet(/*has_relu=*/true);
  ExpectRoundedScores(unet.graph, unet.points, unet.values);
}

TEST(Int8NetworkTest, ANetworkWithoutReluIsSignedThroughout) {
  const UNet unet(/*has_relu=*/false);
  for (const Int8Value& value : FindInt8Candidates(unet.graph).values) EXPECT_FALSE(value.is_non_negative);
  ExpectRoundedScores(unet.graph, unet.points, unet.values);
}

TEST(Int8NetworkTest, AConvolutionAddsItsShortcut) {
  for (const bool is_first : {true, false}) {
    GraphBuilder b(18);
    const int in = b.Relu(b.Submanifold(0, 16, true));
    const auto add_shortcut = [&] { return b.Linear(in, 12, true); };
    FusedPair pair;
    if (is_first) pair.shortcut = add_shortcut();
    const int inner = b.Relu(b.Submanifold(in, 32, true));
    pair.conv = b.Submanifold(inner, 12, true);
    if (!is_first) pair.shortcut = add_shortcut();
    const int block = b.Relu(b.Sum(pair.conv, pair.shortcut));
    Graph graph = b.Finish(b.Linear(b.Relu(b.Submanifold(block, 9, true)), 5, true));
    const Points points = RandomPoints(7);
    AddScales(graph, points);
    std::vector<int> values;
    for (const Int8Value& value : FindInt8Candidates(graph).values) values.push_back(value.node);
    ExpectRoundedScores(graph, points, values, {}, pair);
  }
}

TEST(Int8NetworkTest, FloatNodesReadAndMultiplyFloats) {
  const UNet unet(/*has_relu=*/true);
  std::vector<int> values = unet.values;
  // The voxels' features, and the value that only the head reads, stay as they are.
  values.erase(values.begin());
  values.pop_back();
  ExpectRoundedScores(unet.graph, unet.points, values, {unet.stem, unet.head});
}

TEST(Int8NetworkTest, PartsOfAConcatenationWithAndWithoutSign) {
  GraphBuilder b(12);
  const int plain = b.Submanifold(0, 5, true);
  const int relu = b.Relu(b.Submanifold(0, 7, true));
  const int conv = b.Submanifold(b.Concat({plain, relu}), 6, false);
  Graph graph = b.Finish(b.Linear(conv, 4, true));
  const Points points = RandomPoints(8);
  AddScales(graph, points);
  // `relu` is rounded to 255 numbers for itself, then to 127 in the concatenation.
  Variant variant = kInt8;
  const std::vector<float> scores = ScoresOf(graph, points, variant);
  const Graph exact = WithRoundedWeights(graph, {});
  Interpreter interpreter(exact, points);
  interpreter.EditValues([&](int node, Values& rows) {
    const double scale = At(graph, node).scale;
    if (scale == 0) return;
    for (auto& [site, row] : rows) {
      for (double& number : row) {
        number = Rounded(number, scale, node == relu);
        if (node == relu) number = Rounded(number, scale * 255 / 127, false);
      }
    }
  });
  const auto classes = static_cast<size_t>(graph.num_classes);
  ASSERT_EQ(scores.size(), points.size() * classes);
  for (size_t point = 0; point < points.size(); ++point) {
    const auto expected = interpreter.EvaluateAt(At(graph, graph.scores_output).inputs[0], point);
    for (size_t c = 0; c < classes; ++c) EXPECT_NEAR(scores[point * classes + c], (*expected)[c], 1e-4);
  }
}

TEST(Int8NetworkTest, ImagesHaveTheScoresOfTheirWholeNumbers) {
  GraphBuilder b(14, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const int sites = b.Relu(b.Linear(0, 6, true));
  const int image = b.ToDense(sites);
  const kernels::Conv2dGeometry plain{.kernel_size = {3, 3}, .padding = {1, 1}};
  const kernels::Conv2dGeometry wide{.kernel_size = {3, 1}, .padding = {2, 0}, .dilation = {2, 1}};
  const kernels::Conv2dGeometry half{.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  kernels::Conv2dGeometry twice = half;
  twice.is_transposed = true;
  const int first = b.Relu(b.Norm(b.Conv2d(image, plain, 9, false)));
  const int coarse = b.Relu(b.Conv2d(b.Conv2d(first, half, 12, true), plain, 12, true));
  const int both = b.Concat({b.Relu(b.Norm(b.Conv2d(coarse, twice, 8, false))), first});
  const int last = b.Relu(b.Sum(b.Conv2d(both, wide, 9, true), b.Conv2d(first, {}, 9, false)));
  const int back = b.FromDense(b.Conv2d(last, {}, 5, true), sites);
  Graph graph = b.Finish(back);
  const Points points = RandomPoints(10, /*dimension=*/2);
  AddScales(graph, points);
  std::vector<int> values;
  for (const Int8Value& value : FindInt8Candidates(graph).values) values.push_back(value.node);
  ExpectRoundedScores(graph, points, values);
}

TEST(Int8ProgramTest, AConvolutionOfImagesInGroupsStaysFloat32) {
  GraphBuilder b(15, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const int sites = b.Linear(0, 6, true);
  const int image = b.ToDense(sites);
  const int grouped = b.Conv2d(image, {.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 2}, 4, true);
  const Graph graph = b.Finish(b.FromDense(grouped, sites));
  EXPECT_EQ(FindInt8Candidates(graph).layers.size(), 1U);
}

// Each value is read in 8 bits and in float32: by a pool, a crop, an addition on other sites, an attention, an output.
TEST(Int8NetworkTest, OtherOperatorsReadFloats) {
  GraphBuilder b(13);
  const int a = b.Relu(b.Submanifold(0, 8, true));
  const int conv = b.Activation(b.Submanifold(a, 8, true), {kernels::ActivationFunction::kLeakyRelu, 0.1f});
  const int pool = b.PoolDown(conv, kernels::PoolReduce::kMax);
  const int back = b.Unpool(b.Activation(b.Submanifold(pool, 8, true), kernels::ActivationFunction::kSigmoid), pool,
                            kernels::PoolReduce::kMax);
  const int summed = b.Submanifold(b.Sum(back, conv), 8, true);
  const int weighed = b.Submanifold(b.Multiply(summed, b.Submanifold(summed, 1, true)), 8, false);
  const int attended =
      b.Attention(b.Linear(weighed, 8, true), b.Linear(weighed, 8, false), b.Linear(a, 8, false), 2, 0.5f);
  Graph graph = b.Finish(b.Linear(b.Concat({attended, weighed, a}), 4, true));
  const Points points = RandomPoints(9);
  AddScales(graph, points);
  const std::vector<float> scores = ScoresOf(graph, points, kInt8);
  const std::vector<float> floats = ScoresOf(graph, points, {.name = "Float32"});
  ASSERT_EQ(scores.size(), floats.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    largest = std::max(largest, double{std::abs(floats[i])});
    difference = std::max(difference, double{std::abs(floats[i] - scores[i])});
  }
  EXPECT_GT(difference, 0);
  EXPECT_LE(difference, 0.05 * largest);
}

TEST(Int8NetworkTest, ASampleHasTheSameBytesInEveryBatchAndWithEveryNumberOfThreads) {
  const Graph graph = UNet(/*has_relu=*/true).graph;
  std::vector<PointCloud> clouds;
  for (uint32_t seed = 20; seed < 25; ++seed)
    clouds.push_back(CloudOf(RandomScan(seed, 30 + 20 * static_cast<int>(seed % 3))));
  std::vector<BatchReport> alone;
  for (const int num_threads : {1, 3}) {
    const auto runner = DeviceRunner::Create({.num_threads = num_threads});
    ASSERT_TRUE(runner.ok()) << runner.status();
    for (const int32_t block_rows : {0, 64}) {
      Variant variant = kInt8;
      variant.plan.block.rows = block_rows;
      const auto program = (*runner)->Compile(graph, variant);
      ASSERT_TRUE(program.ok()) << program.status();
      for (size_t i = 0; i < clouds.size(); ++i) {
        BatchReport output = (*runner)->Run(*program, {&clouds[i]}, true);
        ASSERT_TRUE(output.status.ok()) << output.status;
        if (alone.size() < clouds.size()) {
          alone.push_back(std::move(output));
        } else {
          ExpectSameBytes(output, alone[i]);
        }
      }
      const std::vector<const PointCloud*> batch = {&clouds[3], &clouds[0], &clouds[4], &clouds[1], &clouds[2]};
      const BatchReport together = (*runner)->Run(*program, batch, true);
      ASSERT_TRUE(together.status.ok()) << together.status;
      const size_t places[] = {3, 0, 4, 1, 2};
      for (size_t i = 0; i < batch.size(); ++i) {
        ASSERT_FALSE(together.samples[i].outputs.empty());
        for (size_t j = 0; j < together.samples[i].outputs.size(); ++j) {
          EXPECT_TRUE(together.samples[i].outputs[j].bytes == alone[places[i]].samples[0].outputs[j].bytes) << i;
        }
      }
    }
  }
}

// In float32, a value that is not finite makes the logits of its points NaN or infinite. Whole numbers have neither.
TEST(Int8NetworkTest, ValuesThatAreNotFiniteBecomeNumbers) {
  using Function = kernels::ActivationFunction;
  for (const auto function : {Function::kExp, Function::kLog}) {  // infinite, and NaN of numbers below 0
    GraphBuilder b(5);
    const int conv = b.Submanifold(0, 4, false);
    Graph graph = b.Finish(b.Linear(b.Activation(conv, function), 3, true));
    auto& weight = std::get<SparseConvOp>(At(graph, conv).op).weight;
    HostTensor values = *weight;
    for (float& value : values.values) value = 1000 * (function == Function::kLog ? -std::abs(value) : std::abs(value));
    weight = std::make_shared<const HostTensor>(std::move(values));
    for (const Int8Value& value : FindInt8Candidates(graph).values) At(graph, value.node).scale = 0.125f;
    const PointCloud cloud = CloudOf(RandomPoints(7));
    const auto runner = DeviceRunner::Create({.num_threads = 1});
    ASSERT_TRUE(runner.ok()) << runner.status();
    for (const bool is_int8 : {false, true}) {
      const auto program = (*runner)->Compile(graph, is_int8 ? kInt8 : Variant());
      ASSERT_TRUE(program.ok()) << program.status();
      const BatchReport output = (*runner)->Run(*program, {&cloud}, /*return_scores=*/true);
      ASSERT_TRUE(output.status.ok()) << output.status;
      const InferResult& sample = output.samples[0];
      EXPECT_EQ(sample.counts.not_finite == 0, is_int8);
      const absl::Span<const uint8_t> labels = sample.labels();
      EXPECT_EQ(std::find(labels.begin(), labels.end(), 255) == labels.end(), is_int8) << "the ignore label";
    }
  }
}

template <typename Kind>
int64_t CountSteps(const Program& program) {
  return std::count_if(program.steps.begin(), program.steps.end(),
                       [](const auto& step) { return dynamic_cast<const Kind*>(step.get()) != nullptr; });
}

TEST(Int8ProgramTest, ValuesBetweenProductsAreStoredIn8Bits) {
  const UNet unet(/*has_relu=*/true);
  const Program program = Compile(unet.graph, Plan(), {.is_int8 = true, .float_nodes = {unet.stem, unet.head}});
  EXPECT_EQ(CountSteps<Int8ConvStep>(program), 8);
  EXPECT_EQ(CountSteps<Int8LinearStep>(program), 1);
  // The stem's value is rounded for its reader; the concatenation is written in place.
  EXPECT_EQ(CountSteps<Int8ConversionStep>(program), 1);
  // These are float32: the voxels' features, the stem's value, the shortcut, the values of the last convolution (which
  // the head reads) and of the head.
  int num_floats = 0;
  for (const Buffer& buffer : program.buffers) num_floats += buffer.dtype == DType::kFloat32;
  EXPECT_EQ(num_floats, 5);
  EXPECT_LT(program.weight_bytes, Compile(unet.graph, Plan(), {}).weight_bytes);
}

TEST(Int8ProgramTest, WeightsAreCountedAsTheyArePacked) {
  const UNet unet(/*has_relu=*/true);
  const Program program = Compile(unet.graph, Plan(), {.is_int8 = true});
  size_t bytes = 0;
  const auto add = [&](const Int8Weights& weights, const FusedInt8Epilogue& epilogue) {
    bytes += weights.bytes();
    for (const auto* values : {&epilogue.multiplier, &epilogue.bias, &epilogue.residual_scale, &epilogue.inverse_scale})
      bytes += values->values().size() * sizeof(float);
  };
  for (const auto& step : program.steps) {
    if (const auto* conv = dynamic_cast<const Int8ConvStep*>(step.get())) {
      add(conv->options().weights, conv->options().epilogue);
    } else if (const auto* linear = dynamic_cast<const Int8LinearStep*>(step.get())) {
      add(linear->options().weights, linear->options().epilogue);
    }
  }
  EXPECT_GT(bytes, 0U);
  EXPECT_EQ(program.weight_bytes, static_cast<int64_t>(bytes));
}

TEST(Int8ProgramTest, WithoutScalesNothingIsIn8Bits) {
  UNet unet(/*has_relu=*/true);
  for (GraphNode& node : unet.graph.nodes) node.scale = 0;
  const Program program = Compile(unet.graph, Plan(), {.is_int8 = true});
  EXPECT_EQ(CountSteps<Int8ConvStep>(program), 0);
  EXPECT_EQ(program.steps.size(), Compile(unet.graph, Plan(), {}).steps.size());
}

TEST(Int8ProgramTest, AnOutputStaysFloat32) {
  UNet unet(/*has_relu=*/true);
  const Int8Candidates found = FindInt8Candidates(unet.graph);
  const int node = found.layers[1].result_node;  // a convolution reads it
  unet.graph.tensors.push_back({"features", node});
  const Layers layers(unet.graph);
  Int8Types types(layers, CompileTarget());
  types.FindStored();
  EXPECT_FALSE(types.IsStored(layers.LayerOf(node)));
  EXPECT_TRUE(types.IsStored(layers.LayerOf(found.layers[2].result_node)));
}

// The weights of a fused batch norm or the scales may be beyond float32.
TEST(Int8ProgramTest, WeightsThatAreNotFiniteAreAnError) {
  UNet unet(/*has_relu=*/true);
  for (const Int8Value& value : FindInt8Candidates(unet.graph).values) At(unet.graph, value.node).scale = 3e38f;
  for (GraphNode& node : unet.graph.nodes) {
    if (auto* const norm = std::get_if<BatchNormOp>(&node.op)) {
      HostTensor weight = *norm->weight;
      for (float& value : weight.values) value = 1e30f;
      norm->weight = std::make_shared<const HostTensor>(std::move(weight));
    }
  }
  EXPECT_EQ(Compile(unet.graph, Plan(), {.is_int8 = true}).Check().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace voxserve::int8_test
