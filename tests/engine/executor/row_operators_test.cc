// Tests operators that compute each row on its own, in networks: products, row norms, PReLU, embeddings, generalised
// means, activations, and layers that share their weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "engine/base/error_reason.h"
#include "engine/compiler/compiler.h"
#include "engine/ops/rows/embedding.h"
#include "engine/ops/rows/linear.h"
#include "engine/ops/rows/row_norm.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/operator_networks.h"
#include "tests/engine/executor/program_comparison.h"
#include "tests/support/activation_formulas.h"

namespace voxserve::row_operators_test {
namespace {

using kernels::ActivationFunction;
using kernels::RowNorm;
using ::testing::HasSubstr;

class RowOperatorsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, RowOperatorsTest, support::AllDevices(), support::DeviceName);

TEST_P(RowOperatorsTest, ProductsOfSites) {
  for (const int channels : {1, 7, 16}) {
    GraphBuilder b(1);
    const int stem = b.Submanifold(0, channels, true);
    const int product = b.Multiply(stem, b.Activation(b.Linear(stem, channels, true), ActivationFunction::kSigmoid));
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.Multiply(product, product), 3, true)), 1);
  }
}

// Each function runs on inputs of as many channels, and on inputs of which one has 1 channel. Divisors are above 0.5.
TEST_P(RowOperatorsTest, FunctionsOfTwo) {
  using kernels::Elementwise;
  uint32_t seed = 110;
  for (const auto function : {Elementwise::kAdd, Elementwise::kSubtract, Elementwise::kMultiply, Elementwise::kDivide,
                              Elementwise::kMaximum, Elementwise::kMinimum}) {
    for (const int channels : {1, 7, 16}) {
      GraphBuilder b(++seed);
      const int stem = b.Submanifold(0, channels, true);
      const auto positive = [&](int out) {
        return b.Activation(b.Linear(stem, out, true), {ActivationFunction::kClamp, 0.5f, 9});
      };
      const int both = b.Elementwise(stem, positive(channels), function, function == Elementwise::kDivide ? 0.5f : 0);
      const int narrow = b.Elementwise(both, positive(1), function);
      const int wide = b.Elementwise(positive(1), positive(channels), function);
      ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({narrow, wide}), 3, true)), seed);
    }
  }
}

TEST_P(RowOperatorsTest, ReductionsOfSitesPointsAndSamples) {
  uint32_t seed = 140;
  for (const RowNorm kind : {RowNorm::kSum, RowNorm::kMean, RowNorm::kMax, RowNorm::kMin, RowNorm::kLength}) {
    for (const int channels : {1, 6, 40, 130}) {
      GraphBuilder b(++seed);
      const int stem = b.Submanifold(0, channels, true);
      const int sites = b.Concat({b.RowNorm(stem, kind), b.RowNorm(b.RowNorm(stem, kind), kind)});
      const int points = b.RowNorm(b.Linear(b.PointFeatures(), channels, true), kind);
      const int samples = b.RowNorm(b.GlobalPool(stem, kernels::PoolReduce::kAverage), kind);
      const int gated = b.Broadcast(sites, b.Concat({samples, samples}), BroadcastOp::Function::kMultiply);
      ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({b.VoxelToPoint(gated), points}), 3, true)), seed);
    }
  }
}

TEST_P(RowOperatorsTest, CentredRowsDividedByTheirDeviation) {
  GraphBuilder b(170);
  const int stem = b.Submanifold(0, 12, true);
  const int centred = b.Elementwise(stem, b.RowNorm(stem, RowNorm::kMean), kernels::Elementwise::kSubtract);
  const int divided =
      b.Elementwise(centred, b.RowNorm(centred, RowNorm::kLength), kernels::Elementwise::kDivide, 1e-3f);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Relu(divided), 3, true)), 170);
}

// The level of the second coordinates is that of a strided convolution.
TEST_P(RowOperatorsTest, CoordinatesAsFeatures) {
  GraphBuilder b(180);
  const int stem = b.Submanifold(0, 8, true);
  const int fine = b.SiteCoordinates(stem, {.scale = {0.5f, 0.25f, 1.0f}, .shift = {-1.0f, 0.5f, 0.0f}});
  const int down = b.Down(b.Concat({stem, fine}), 8);
  const int coarse = b.SiteCoordinates(down, {.scale = {0.125f, 0.25f, 0.5f}});
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Up(b.Relu(b.Concat({down, coarse})), down, 6), 3, true)), 180);
}

TEST_P(RowOperatorsTest, NormsOfRows) {
  uint32_t seed = 10;
  for (const int channels : {1, 6, 40, 130}) {
    for (const RowNorm kind : {RowNorm::kSoftmax, RowNorm::kLayerNorm, RowNorm::kL2}) {
      for (const bool affine : {false, true}) {
        if (affine && kind != RowNorm::kLayerNorm) continue;
        GraphBuilder b(++seed);
        const int norm = b.RowNorm(b.Submanifold(0, channels, true), kind, 1e-3f, affine);
        ExpectEqual(GetParam(), b.Finish(b.Linear(norm, 3, true)), seed);
      }
    }
  }
}

// A transformer block's sums and activations cost no step: both layer norms add what they norm, one is followed by an
// activation, and three linear layers of one value are one product on a GPU.
TEST_P(RowOperatorsTest, ALayerNormFusesItsSumAndLinearLayersOfOneValueMerge) {
  GraphBuilder b(35);
  const int stem = b.Submanifold(0, 12, true);
  const int first = b.Sum(b.RowNorm(b.Submanifold(stem, 12, true), RowNorm::kLayerNorm, 1e-5f, true), stem);
  const int norm = b.Activation(b.RowNorm(first, RowNorm::kLayerNorm, 1e-5f, true), ActivationFunction::kGelu);
  const int a = b.Linear(norm, 8, true), c = b.Linear(norm, 8, false), d = b.Norm(b.Linear(norm, 5, true));
  const int product = b.Linear(b.Multiply(a, c), 5, true);
  const Graph graph = b.Finish(b.Linear(b.Sum(b.Elementwise(d, product, kernels::Elementwise::kMaximum), d), 3, true));
  const auto count = [](const Program& program, auto* of) {
    return std::count_if(program.steps.begin(), program.steps.end(),
                         [&](const auto& step) { return dynamic_cast<decltype(of)>(step.get()) != nullptr; });
  };
  for (const bool merges : {false, true}) {
    const Program program = Compile(graph, Plan(), {.merges_products = merges});
    EXPECT_EQ(count(program, static_cast<LinearStep*>(nullptr)), merges ? 3 : 5);
    EXPECT_EQ(count(program, static_cast<RowNormStep*>(nullptr)), 2);
  }
  ExpectEqual(GetParam(), graph, 35);
}

// These operators are not fused with their neighbours.
TEST_P(RowOperatorsTest, BetweenOtherOperators) {
  GraphBuilder b(30);
  const int stem = b.Relu(b.Norm(b.Submanifold(0, 8, true)));
  const int normed = b.Relu(b.Norm(b.RowNorm(stem, RowNorm::kLayerNorm, 1e-5f, true)));
  const int sum = b.Relu(b.Sum(b.PRelu(b.Linear(normed, 8, false), 8), stem));
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({sum, b.RowNorm(sum, RowNorm::kL2, 1e-12f)}), 3, true)), 30);
}

TEST_P(RowOperatorsTest, SlopesOfOneChannelOrOfEach) {
  for (const int num_slopes : {1, 9}) {
    GraphBuilder b(40);
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.PRelu(b.Submanifold(0, 9, true), num_slopes), 3, true)), 40);
  }
}

TEST_P(RowOperatorsTest, RowsOfPointsAndOfSamples) {
  GraphBuilder b(50);
  const int points = b.RowNorm(b.Linear(b.PointFeatures(), 8, true), RowNorm::kSoftmax);
  const int sites = b.PointToVoxel(b.PRelu(points, 1), kernels::PoolReduce::kAverage);
  const int sample = b.RowNorm(b.GeneralisedMean(sites, 3, 1e-6f), RowNorm::kL2, 1e-12f);
  const int gate = b.RowNorm(b.Multiply(sample, sample), RowNorm::kSoftmax);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Broadcast(sites, gate, BroadcastOp::Function::kMultiply), 3, true)), 50);
}

TEST_P(RowOperatorsTest, GeneralisedMeansOfNegativeValuesToo) {
  for (const float exponent : {1.0f, 3.0f, 6.5f}) {
    GraphBuilder b(60);
    const int stem = b.Submanifold(0, 7, true);
    const int mean = b.GeneralisedMean(stem, exponent, 0.01f);
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.Broadcast(stem, mean, BroadcastOp::Function::kConcat), 3, true)), 60);
  }
}

TEST_P(RowOperatorsTest, EmbeddingsOfWholeNumbers) {
  GraphBuilder b(70);
  const int points = b.Embedding(b.PointFeatures(), 3, 3, 6);
  const int sites = b.Embedding(0, 3, 3, 4);
  const Graph graph = b.Finish(b.Linear(b.Concat({points, b.VoxelToPoint(sites)}), 3, true));
  Points cloud = RandomPoints(70, 3);
  for (size_t i = 0; i < cloud.size(); ++i) cloud.values[4 * i + 3] = static_cast<float>(i % 3);
  ExpectEqual(GetParam(), graph, cloud);
}

// FlatFormer's tables of places have 468 rows: 256 and more are not exact in bfloat16.
TEST(EmbeddingTables, OfMoreRowsThanATypeCountsAreRefused) {
  struct Case {
    DType dtype;
    int64_t rows;
    const char* reason;
  };
  for (const auto& [dtype, rows, reason] :
       {Case{DType::kBfloat16, 468,
             "468 rows; numbers above 256 are not exact in bfloat16; set the model's precision "
             "to FLOAT32 or FLOAT16"},
        Case{DType::kBfloat16, 257, "or FLOAT16"},
        Case{DType::kFloat16, 2049,
             "numbers above 2048 are not exact in float16; set the model's precision to FLOAT32"},
        Case{DType::kBfloat16, 2049, "set the model's precision to FLOAT32"}}) {
    EmbeddingStep step({.index = {},
                        .out = {},
                        .table = std::vector<float>(static_cast<size_t>(rows)),
                        .num_embeddings = rows,
                        .index_dtype = dtype,
                        .out_dtype = dtype});
    WeightUploader uploader(nullptr, StreamView());  // which a refused table does not reach
    const absl::Status status = step.Upload(uploader);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadModel);
    EXPECT_THAT(status.message(), HasSubstr(reason));
    EXPECT_EQ(absl::StrContains(status.message(), "or FLOAT16"), rows <= 2048);
  }
}

TEST_P(RowOperatorsTest, EveryActivationOfASite) {
  for (const kernels::Activation& activation : support::EveryActivation()) {
    SCOPED_TRACE(static_cast<int>(activation.function));
    GraphBuilder b(80);
    int node = b.Submanifold(0, 8, true);
    const bool has_negative_inputs = std::isfinite(support::DefinedActivation(activation, -1.5));
    if (!has_negative_inputs) node = b.Activation(node, {ActivationFunction::kSoftplus, 2});
    ExpectEqual(GetParam(), b.Finish(b.Linear(b.Activation(node, activation), 3, true)), 80);
  }
}

// No value in the chain leaves the range of the next function.
TEST_P(RowOperatorsTest, ActivationsOfActivations) {
  const std::vector<kernels::Activation> chain = {{ActivationFunction::kElu, 0.5f},
                                                  ActivationFunction::kHardSwish,
                                                  {ActivationFunction::kClamp, -0.2f, 2},
                                                  ActivationFunction::kMish,
                                                  ActivationFunction::kHardSigmoid,
                                                  ActivationFunction::kGeluTanh,
                                                  {ActivationFunction::kSoftplus, 2},
                                                  ActivationFunction::kLog,
                                                  ActivationFunction::kAbs,
                                                  ActivationFunction::kSqrt,
                                                  {ActivationFunction::kPower, 1.5f},
                                                  ActivationFunction::kSquare,
                                                  ActivationFunction::kExp};
  GraphBuilder b(80);
  int node = b.Submanifold(0, 8, true);
  for (const kernels::Activation& activation : chain) node = b.Activation(node, activation);
  ExpectEqual(GetParam(), b.Finish(b.Linear(node, 3, true)), 80);
}

TEST_P(RowOperatorsTest, EveryOperatorOfTheNetworkOfRows) {
  const absl::StatusOr<Graph> graph = LoadTestGraph(RowNetwork());
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const uint32_t seed : {1u, 2u, 3u}) ExpectEqual(GetParam(), *graph, RandomScan(seed));
}

// Two layers share their weights, and a batch norm is folded into one of them. The other layer's weights must not
// change.
TEST_P(RowOperatorsTest, ABatchNormChangesNoSharedWeight) {
  GraphBuilder b(90);
  const int stem = b.Submanifold(0, 6, true);
  const int first = b.Linear(stem, 6, true);
  const int second = b.LinearWithWeightsOf(b.Relu(b.Norm(first)), first);
  const int third = b.LinearWithWeightsOf(b.Norm(second), first);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({third, b.LinearWithWeightsOf(stem, first)}), 3, true)), 90);
}

// If the embedding table has no row for a number, the result is NaN. The point with this number gets the ignore label
// and scores of 0, and is counted.
TEST_P(RowOperatorsTest, NumbersOutsideOfTheTableGetTheIgnoreLabel) {
  GraphBuilder b(100);
  const int found = b.Embedding(b.PointFeatures(), 3, 2, 4);
  const Graph graph = b.Finish(b.Linear(found, 3, true));
  Points points;
  const std::vector<float> numbers = {0, 1, 2, -1, 0.5f, 1e30f, -0.0f};
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (const float value : {static_cast<float>(i), 1.0f, 1.0f, numbers[i]}) points.values.push_back(value);
  }
  const PointCloud cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, points.values.data(), points.size());
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport output = (*runner)->Run(*program, {&cloud}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool is_there = numbers[i] == 0 || numbers[i] == 1;
    EXPECT_EQ(output.samples[0].labels()[i] != 255, is_there) << numbers[i];
    EXPECT_EQ(output.samples[0].scores()[i * 3] != 0, is_there) << numbers[i];
  }
  EXPECT_EQ(output.samples[0].counts.not_finite, 4);
}

// 0 / 0 is NaN: the point gets the ignore label and scores of 0, and is counted. Its neighbours keep their labels, also
// where each is the only point of its cloud. A cloud without points is answered.
TEST_P(RowOperatorsTest, AQuotientOfZeroByZeroGetsTheIgnoreLabel) {
  GraphBuilder b(190);
  const int points = b.PointFeatures();
  const int ratio = b.Elementwise(points, points, kernels::Elementwise::kDivide);
  const int length = b.RowNorm(ratio, RowNorm::kLength);
  const Graph graph = b.Finish(b.Linear(b.Elementwise(ratio, length, kernels::Elementwise::kSubtract), 3, true));
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<std::vector<float>> clouds = {
      {1, 1, 1, 0.5f, 2, 1, 1, 0, 3, 1, 1, -2}, {2, 1, 1, 0}, {3, 1, 1, -2}, {}};
  const std::vector<std::vector<bool>> are_finite = {{true, false, true}, {false}, {true}, {}};
  std::vector<PointCloud> batch;
  for (const std::vector<float>& values : clouds) {
    batch.push_back(*PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), values.size() / 4));
  }
  const BatchReport output = (*runner)->Run(*program, {&batch[0], &batch[1], &batch[2], &batch[3]}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  for (size_t sample = 0; sample < clouds.size(); ++sample) {
    const auto& result = output.samples[sample];
    int64_t not_finite = 0;
    for (size_t i = 0; i < are_finite[sample].size(); ++i) {
      EXPECT_EQ(result.labels()[i] != 255, are_finite[sample][i]) << sample << ", " << i;
      not_finite += are_finite[sample][i] ? 0 : 1;
    }
    EXPECT_EQ(result.counts.not_finite, not_finite) << sample;
  }
}

}  // namespace
}  // namespace voxserve::row_operators_test
