// Tests functions of two rows, row norms, reductions of rows, PReLU and embeddings against naive loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/rows/elementwise.h"
#include "kernels/rows/embedding.h"
#include "kernels/rows/prelu.h"
#include "kernels/rows/row_norm.h"
#include "kernels/rows/sample_reduce.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::row_operators_kernels_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}, {.after = 4}};
const std::vector<int32_t> kChannels = {1, 3, 16, 40, 64, 65, 300};

class RowKernelTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  template <typename Params, typename OnCpu, typename OnCuda>
  void Run(const Params& params, const OnCpu& on_cpu, const OnCuda& on_cuda) const {
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      on_cpu(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(on_cuda(params, TestStream()));
      support::Synchronize();
    }
  }

  Matrix Normalize(RowNormParams params, const Matrix& in, DType out_dtype, const std::vector<float>& weight = {},
                   const std::vector<float>& bias = {}) const {
    const DeviceMatrix device_in(device(), dtype(), in);
    const int32_t channels = IsReduction(params.kind) ? 1 : in.channels;
    const DeviceMatrix out(device(), out_dtype, Matrix(in.rows, channels, {.before = 4, .after = 3}, nullptr));
    const DeviceArray<float> device_weight(device(), weight), device_bias(device(), bias);
    params.in = device_in.View();
    params.out = out.View();
    if (!weight.empty()) params.weight = device_weight.data();
    if (!bias.empty()) params.bias = device_bias.data();
    Run(params, cpu::NormalizeRows, [](const auto&... all) { return cuda::NormalizeRows(all...); });
    return out.ToHost();
  }

  Matrix Combine(CombineRowsParams params, const Matrix& a, const Matrix& b, DType out_dtype, Margins margins) const {
    const DeviceMatrix device_a(device(), dtype(), a), device_b(device(), dtype(), b);
    const int32_t channels = std::max(a.channels, b.channels);
    const DeviceMatrix out(device(), out_dtype, Matrix(a.rows, channels, margins, nullptr));
    params.a = device_a.View();
    params.b = device_b.View();
    params.out = out.View();
    Run(params, cpu::CombineRows, [](const auto&... all) { return cuda::CombineRows(all...); });
    return out.ToHost();
  }
};

constexpr Elementwise kFunctions[] = {Elementwise::kAdd,    Elementwise::kSubtract, Elementwise::kMultiply,
                                      Elementwise::kDivide, Elementwise::kMaximum,  Elementwise::kMinimum};
constexpr RowNorm kReductions[] = {RowNorm::kSum, RowNorm::kMean, RowNorm::kMax, RowNorm::kMin, RowNorm::kLength};

float DefinedOfTwo(const CombineRowsParams& params, float a, float b) {
  switch (params.function) {
    case Elementwise::kAdd:
      return a + b;
    case Elementwise::kSubtract:
      return a - b;
    case Elementwise::kMultiply:
      return a * b;
    case Elementwise::kDivide:
      return a / (b + params.epsilon);
    case Elementwise::kMaximum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::max(a, b);
    case Elementwise::kMinimum:
      return std::isnan(a) || std::isnan(b) ? kNan : std::min(a, b);
  }
  return kNan;
}

double DefinedReduction(RowNorm kind, const Matrix& in, int64_t row) {
  double sum = 0, squares = 0, largest = in.at(row, 0), smallest = in.at(row, 0);
  for (int64_t c = 0; c < in.channels; ++c) {
    const double value = in.at(row, c);
    sum += value;
    squares += value * value;
    largest = std::max(largest, value);
    smallest = std::min(smallest, value);
  }
  switch (kind) {
    case RowNorm::kSum:
      return sum;
    case RowNorm::kMean:
      return sum / in.channels;
    case RowNorm::kMax:
      return largest;
    case RowNorm::kMin:
      return smallest;
    default:
      return std::sqrt(squares);
  }
}

std::vector<double> Defined(const RowNormParams& params, const Matrix& in, int64_t row,
                            const std::vector<float>& weight, const std::vector<float>& bias) {
  std::vector<double> values;
  for (int64_t c = 0; c < in.channels; ++c) values.push_back(in.at(row, c));
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0, mean = 0, variance = 0;
  for (const double value : values) {
    sum += std::exp(value);
    squares += value * value;
    mean += value / count;
  }
  for (const double value : values) variance += (value - mean) * (value - mean) / count;
  for (size_t c = 0; c < values.size(); ++c) {
    double& value = values[c];
    switch (params.kind) {
      case RowNorm::kSoftmax:
        value = std::exp(value) / sum;
        break;
      case RowNorm::kL2:
        value /= std::max(std::sqrt(squares), double{params.epsilon});
        break;
      default:
        value = (value - mean) / std::sqrt(variance + params.epsilon);
        if (!weight.empty()) value = value * weight[c] + bias[c];
    }
  }
  return values;
}

// The result is written over the residual where both have one type.
TEST_P(RowKernelTest, ALayerNormAddsAResidualAndActivates) {
  Random random(21);
  for (const int32_t channels : {1, 3, 16, 36, 44, 60, 64, 96, 128, 130, 252, 256, 260, 512, 516}) {
    const int64_t num_rows = 133;
    const Matrix in(num_rows, channels, random.OneOf(kMargins), &random, dtype());
    const Matrix added(num_rows, channels, random.OneOf(kMargins), &random, dtype());
    const std::vector<float> weight = random.Floats(channels), bias = random.Floats(channels);
    const DeviceArray<float> device_weight(device(), weight), device_bias(device(), bias);
    for (const Activation activation : {Activation(), Activation(ActivationFunction::kLeakyRelu, 0.25f)}) {
      for (const DType out_dtype : OutDTypes(dtype())) {
        const DeviceMatrix device_in(device(), dtype(), in), residual(device(), dtype(), added);
        const DeviceMatrix apart(device(), out_dtype, Matrix(num_rows, channels, {.before = 4, .after = 3}, nullptr));
        const DeviceMatrix& out = out_dtype == dtype() ? residual : apart;
        const RowNormParams params{.kind = RowNorm::kLayerNorm,
                                   .epsilon = 1e-2f,
                                   .weight = device_weight.data(),
                                   .bias = device_bias.data(),
                                   .residual = residual.View(),
                                   .activation = activation,
                                   .in = device_in.View(),
                                   .out = out.View()};
        Run(params, cpu::NormalizeRows, [](const auto&... all) { return cuda::NormalizeRows(all...); });
        const Matrix result = out.ToHost();
        EXPECT_TRUE(result.MarginsAreUntouched());
        for (int64_t row = 0; row < num_rows; ++row) {
          const std::vector<double> normed = Defined(params, in, row, weight, bias);
          for (int64_t c = 0; c < channels; ++c) {
            const double sum = normed[static_cast<size_t>(c)] + added.at(row, c);
            const double value = sum < 0 && activation.parameter != 0 ? 0.25 * sum : sum;
            ASSERT_NEAR(result.at(row, c), value,
                        Tolerance(DType::kFloat32, 10) + Tolerance(out_dtype, std::abs(value)))
                << channels << " channels, row " << row << ", channel " << c;
          }
        }
      }
    }
  }
}

// A second norm has the bytes of a call of its own, and the first norm those without a second. The first result is
// written over the residual.
TEST_P(RowKernelTest, ASecondLayerNormHasTheBytesOfACallOfItsOwn) {
  Random random(22);
  for (const int32_t channels : {1, 3, 16, 32, 36, 44, 60, 64, 96, 128, 130, 252, 256, 260, 504, 512, 516}) {
    for (const int64_t num_rows : {0, 1, 7, 133}) {
      const bool is_affine = random.Chance(0.7), adds = random.Chance(0.5);
      const Margins margins = random.OneOf(kMargins), second_margins = random.OneOf(kMargins);
      SCOPED_TRACE(testing::Message() << channels << " channels, " << num_rows << " rows, affine " << is_affine
                                      << ", residual " << adds << ", margins " << margins.before << "+" << margins.after
                                      << ", " << second_margins.before << "+" << second_margins.after);
      const Matrix in(num_rows, channels, margins, &random, dtype());
      const Matrix added(num_rows, channels, margins, &random, dtype());
      const DeviceArray<float> weights(device(), random.Floats(4 * int64_t{channels}));
      const auto weights_at = [&](int i) { return is_affine ? weights.data() + i * channels : nullptr; };
      const DeviceMatrix device_in(device(), dtype(), in);
      RowNormParams params{.kind = RowNorm::kLayerNorm,
                           .epsilon = 1e-2f,
                           .weight = weights_at(0),
                           .bias = weights_at(1),
                           .activation = random.OneOf(std::vector<Activation>{{}, ActivationFunction::kRelu}),
                           .in = device_in.View()};
      // Runs the norms in one call or in two, and returns both results.
      const auto run = [&](bool in_one_call) {
        const DeviceMatrix first(device(), dtype(), added);
        const DeviceMatrix second(device(), dtype(), Matrix(num_rows, channels, second_margins, nullptr));
        RowNormParams both = params;
        both.out = first.View();
        if (adds) both.residual = first.View();
        both.second = {.epsilon = 1e-3f, .weight = weights_at(2), .bias = weights_at(3), .out = second.View()};
        const auto normalize = [&](const RowNormParams& call) {
          Run(call, cpu::NormalizeRows, [](const auto&... all) { return cuda::NormalizeRows(all...); });
        };
        if (in_one_call) {
          normalize(both);
        } else {
          RowNormParams alone = both;
          alone.second = {};
          normalize(alone);
          normalize(SecondNormOf(both));
        }
        return std::pair(first.ToHost(), second.ToHost());
      };
      const auto [first, second] = run(true);
      const auto [expected_first, expected_second] = run(false);
      EXPECT_EQ(first.values, expected_first.values);
      EXPECT_EQ(second.values, expected_second.values);
      for (int64_t row = 0; row < num_rows; ++row) {
        const std::vector<double> normed = Defined({.kind = RowNorm::kLayerNorm, .epsilon = 1e-3f}, first, row, {}, {});
        for (int64_t c = 0; c < channels && !is_affine; ++c) {
          const double value = normed[static_cast<size_t>(c)];
          ASSERT_NEAR(second.at(row, c), value, Tolerance(DType::kFloat32, 10) + Tolerance(dtype(), std::abs(value)))
              << "row " << row << ", channel " << c;
        }
      }
    }
  }
}

TEST_P(RowKernelTest, ASecondNormOfAnotherKindOrTypeIsRefused) {
  if (device() == Device::kCpu) GTEST_SKIP() << "the CPU's caller checks";
  if constexpr (kHasCuda) {
    const Matrix rows(3, 8, {}, nullptr);
    const DeviceMatrix in(device(), dtype(), rows), out(device(), dtype(), rows);
    const DType other = dtype() == DType::kFloat32 ? DType::kFloat16 : DType::kFloat32;
    const DeviceMatrix of_other_type(device(), other, rows);
    const RowNormParams params{.in = in.View(), .out = out.View(), .second = {.out = out.View()}};
    EXPECT_EQ(cuda::NormalizeRows(params, TestStream()), cudaErrorInvalidValue);  // kSoftmax
    RowNormParams of_types = params;
    of_types.kind = RowNorm::kLayerNorm;
    of_types.second.out = of_other_type.View();
    EXPECT_EQ(cuda::NormalizeRows(of_types, TestStream()), cudaErrorInvalidValue);
  }
}

TEST_P(RowKernelTest, NormsEqualTheNaiveLoop) {
  Random random(1);
  for (const int32_t channels : kChannels) {
    for (const int64_t num_rows : {0, 1, 70, 2100}) {
      const Matrix in(num_rows, channels, random.OneOf(kMargins), &random, dtype());
      for (const RowNorm kind : {RowNorm::kSoftmax, RowNorm::kLayerNorm, RowNorm::kL2}) {
        const bool is_affine = kind == RowNorm::kLayerNorm && random.Chance(0.5);
        const std::vector<float> weight = is_affine ? random.Floats(channels) : std::vector<float>();
        const std::vector<float> bias = is_affine ? random.Floats(channels) : std::vector<float>();
        const RowNormParams params{.kind = kind, .epsilon = 1e-2f};
        for (const DType out_dtype : OutDTypes(dtype())) {
          const Matrix out = Normalize(params, in, out_dtype, weight, bias);
          EXPECT_TRUE(out.MarginsAreUntouched());
          for (int64_t row = 0; row < num_rows; ++row) {
            const std::vector<double> expected = Defined(params, in, row, weight, bias);
            for (int64_t c = 0; c < channels; ++c) {
              const double value = expected[static_cast<size_t>(c)];
              // Before a value is rounded to out_dtype, it has the error of a float32 of magnitude 10, which is
              // 1 / sqrt(epsilon).
              const double tolerance = Tolerance(DType::kFloat32, 10) + Tolerance(out_dtype, std::abs(value));
              ASSERT_NEAR(out.at(row, c), value, tolerance)
                  << "norm " << static_cast<int>(kind) << ", " << channels << " channels, row " << row;
            }
          }
        }
      }
    }
  }
}

TEST_P(RowKernelTest, SoftmaxOfLargeValuesHasNoOverflow) {
  Matrix in(2, 3, {}, nullptr);
  in.values = {1000, 1000, -1000, -60000, -60000, -60000};
  const Matrix out = Normalize({.kind = RowNorm::kSoftmax}, in, dtype());
  EXPECT_NEAR(out.at(0, 0), 0.5, 1e-3);
  EXPECT_EQ(out.at(0, 2), 0);
  EXPECT_NEAR(out.at(1, 1), 1.0 / 3, 2e-3);
}

// As in PyTorch, softmax makes a whole row NaN if the row has NaN or +infinity, or only -infinity. The other norms do
// so if the row has NaN. Other rows keep their values.
TEST_P(RowKernelTest, NanTakesTheRowAlone) {
  Matrix in(5, 2, {}, nullptr);
  in.values = {1, 1, kNan, 1, kInfinity, 1, -kInfinity, -kInfinity, -kInfinity, 1};
  const Matrix softmax = Normalize({.kind = RowNorm::kSoftmax}, in, dtype());
  EXPECT_EQ(softmax.at(0, 0), 0.5f);
  for (const int64_t row : {1, 2, 3}) {
    EXPECT_TRUE(std::isnan(softmax.at(row, 0)) && std::isnan(softmax.at(row, 1))) << row;
  }
  EXPECT_EQ(softmax.at(4, 0), 0);
  EXPECT_EQ(softmax.at(4, 1), 1);
  for (const RowNorm kind : {RowNorm::kLayerNorm, RowNorm::kL2}) {
    const Matrix normed = Normalize({.kind = kind, .epsilon = 1e-5f}, in, dtype());
    EXPECT_TRUE(std::isfinite(normed.at(0, 0)));
    EXPECT_TRUE(std::isnan(normed.at(1, 0)) && std::isnan(normed.at(1, 1)));
  }
}

TEST_P(RowKernelTest, ARowOfZerosHasTheLengthEpsilon) {
  Matrix in(2, 5, {}, nullptr);
  std::fill(in.values.begin(), in.values.end(), 0.0f);
  in.at(1, 2) = 1e-3f;
  const Matrix out = Normalize({.kind = RowNorm::kL2, .epsilon = 1e-2f}, in, dtype());
  EXPECT_EQ(out.at(0, 0), 0);
  EXPECT_NEAR(out.at(1, 2), 0.1, 1e-3);
}

// A row's result must have the same bytes at any index and with any alignment.
TEST_P(RowKernelTest, ARowsBytesDoNotDependOnItsPlace) {
  Random random(2);
  for (const int32_t channels : kChannels) {
    const Matrix in(37, channels, {}, &random, dtype());
    for (const RowNorm kind : {RowNorm::kSoftmax, RowNorm::kLayerNorm, RowNorm::kL2, RowNorm::kSum, RowNorm::kLength}) {
      const Matrix all = Normalize({.kind = kind, .epsilon = 1e-5f}, in, dtype());
      for (const int64_t row : {0, 5, 36}) {
        Matrix alone(1, channels, {.before = 3, .after = 1}, nullptr);
        for (int64_t c = 0; c < channels; ++c) alone.at(0, c) = in.at(row, c);
        const Matrix result = Normalize({.kind = kind, .epsilon = 1e-5f}, alone, dtype());
        for (int64_t c = 0; c < all.channels; ++c) ASSERT_EQ(result.at(0, c), all.at(row, c)) << row << " " << c;
      }
    }
  }
}

// One of the two inputs may have a single channel, which counts for all channels.
TEST_P(RowKernelTest, FunctionsOfTwoEqualTheNaiveLoop) {
  Random random(3);
  for (const int32_t channels : kChannels) {
    for (const auto& [of_a, of_b] : {std::pair(channels, channels), std::pair(channels, 1), std::pair(1, channels)}) {
      for (const int64_t num_rows : {0, 1, 130}) {
        const Matrix a(num_rows, of_a, random.OneOf(kMargins), &random, dtype());
        const Matrix b(num_rows, of_b, random.OneOf(kMargins), &random, dtype());
        for (const Elementwise function : kFunctions) {
          const CombineRowsParams params{.function = function, .epsilon = random.Chance(0.5) ? 0.25f : 0.0f};
          for (const DType out_dtype : OutDTypes(dtype())) {
            const Matrix out = Combine(params, a, b, out_dtype, random.OneOf(kMargins));
            EXPECT_TRUE(out.MarginsAreUntouched());
            for (int64_t row = 0; row < num_rows; ++row) {
              for (int64_t c = 0; c < channels; ++c) {
                const float value = DefinedOfTwo(params, a.at(row, of_a == 1 ? 0 : c), b.at(row, of_b == 1 ? 0 : c));
                ASSERT_EQ(out.at(row, c), Rounded(out_dtype, value))
                    << "function " << static_cast<int>(function) << ", " << of_a << " and " << of_b << " channels";
              }
            }
          }
        }
      }
    }
  }
}

// As in PyTorch: x / 0 is infinite, 0 / 0 is NaN, and a maximum with NaN is NaN on both sides. An epsilon below the
// smallest value of float16 keeps a divisor of 0 from making NaN.
TEST_P(RowKernelTest, ZerosInfinitiesAndNan) {
  Matrix a(7, 1, {}, nullptr), b(7, 1, {}, nullptr);
  a.values = {1, 0, -1, kNan, 1, kInfinity, 1};
  b.values = {0, 0, 0, 1, kNan, kInfinity, -0.0f};
  const auto combined = [&](Elementwise function, float epsilon = 0) {
    return Combine({.function = function, .epsilon = epsilon}, a, b, dtype(), {});
  };
  const Matrix quotient = combined(Elementwise::kDivide);
  EXPECT_EQ(quotient.at(0, 0), kInfinity);
  EXPECT_TRUE(std::isnan(quotient.at(1, 0)));
  EXPECT_EQ(quotient.at(2, 0), -kInfinity);
  EXPECT_EQ(quotient.at(6, 0), -kInfinity);
  EXPECT_EQ(combined(Elementwise::kDivide, 1e-12f).at(1, 0), 0);
  for (const Elementwise function : kFunctions) {
    const Matrix out = combined(function);
    EXPECT_TRUE(std::isnan(out.at(3, 0)) && std::isnan(out.at(4, 0))) << static_cast<int>(function);
  }
  EXPECT_TRUE(std::isnan(combined(Elementwise::kSubtract).at(5, 0)));
  EXPECT_EQ(combined(Elementwise::kMaximum).at(5, 0), kInfinity);
}

TEST_P(RowKernelTest, ReductionsEqualTheNaiveLoop) {
  Random random(7);
  for (const int32_t channels : kChannels) {
    for (const int64_t num_rows : {0, 1, 70, 2100}) {
      const Matrix in(num_rows, channels, random.OneOf(kMargins), &random, dtype());
      for (const RowNorm kind : kReductions) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          const Matrix out = Normalize({.kind = kind}, in, out_dtype);
          EXPECT_TRUE(out.MarginsAreUntouched());
          for (int64_t row = 0; row < num_rows; ++row) {
            const double value = DefinedReduction(kind, in, row);
            const double tolerance = Tolerance(DType::kFloat32, channels) + Tolerance(out_dtype, std::abs(value));
            ASSERT_NEAR(out.at(row, 0), value, tolerance)
                << "reduction " << static_cast<int>(kind) << ", " << channels << " channels, row " << row;
          }
        }
      }
    }
  }
}

TEST_P(RowKernelTest, ReductionsOfNanAndInfinity) {
  Matrix in(4, 3, {}, nullptr);
  in.values = {1, 2, 3, kNan, 2, 3, 1, 2, kNan, 1, -kInfinity, kInfinity};
  for (const RowNorm kind : kReductions) {
    const Matrix out = Normalize({.kind = kind}, in, dtype());
    EXPECT_TRUE(std::isfinite(out.at(0, 0)));
    EXPECT_TRUE(std::isnan(out.at(1, 0)) && std::isnan(out.at(2, 0))) << static_cast<int>(kind);
  }
  EXPECT_EQ(Normalize({.kind = RowNorm::kMax}, in, dtype()).at(3, 0), kInfinity);
  EXPECT_EQ(Normalize({.kind = RowNorm::kMin}, in, dtype()).at(3, 0), -kInfinity);
  EXPECT_TRUE(std::isnan(Normalize({.kind = RowNorm::kSum}, in, dtype()).at(3, 0)));
}

TEST_P(RowKernelTest, SlopesEqualTheNaiveLoop) {
  Random random(4);
  for (const int32_t channels : kChannels) {
    Matrix in(130, channels, random.OneOf(kMargins), &random, dtype());
    in.at(0, 0) = kNan;
    const std::vector<float> slopes = random.Floats(channels);
    const DeviceArray<float> device_slopes(device(), slopes);
    for (const DType out_dtype : OutDTypes(dtype())) {
      const DeviceMatrix device_in(device(), dtype(), in);
      const DeviceMatrix device_out(device(), out_dtype, Matrix(130, channels, random.OneOf(kMargins), nullptr));
      const PReluParams params{.in = device_in.View(), .slopes = device_slopes.data(), .out = device_out.View()};
      Run(params, cpu::PRelu, [](const auto&... all) { return cuda::PRelu(all...); });
      const Matrix out = device_out.ToHost();
      EXPECT_TRUE(out.MarginsAreUntouched());
      EXPECT_TRUE(std::isnan(out.at(0, 0)));
      for (int64_t i = 1; i < 130 * channels; ++i) {
        const float x = in.at(i / channels, i % channels);
        const float expected = x > 0 ? x : slopes[static_cast<size_t>(i % channels)] * x;
        ASSERT_EQ(out.at(i / channels, i % channels), Rounded(out_dtype, expected)) << i;
      }
    }
  }
}

TEST_P(RowKernelTest, EmbeddingsAreRowsOfTheTable) {
  const std::vector<float> numbers = {0, 4, 2, 5, -1, 0.5f, kNan, kInfinity, -kInfinity, -0.0f, 3, 60000};
  Random random(5);
  for (const int32_t channels : {1, 5, 16, 64}) {
    Matrix index(static_cast<int64_t>(numbers.size()), 1, {.before = 2, .after = 1}, nullptr);
    for (size_t i = 0; i < numbers.size(); ++i) index.at(static_cast<int64_t>(i), 0) = numbers[i];
    for (const DType out_dtype : OutDTypes(dtype())) {
      const std::vector<float> table = random.Floats(int64_t{5} * channels, out_dtype);
      const DeviceValues device_table(device(), out_dtype, table);
      const DeviceMatrix device_index(device(), dtype(), index);
      const DeviceMatrix device_out(device(), out_dtype, Matrix(index.rows, channels, random.OneOf(kMargins), nullptr));
      const EmbeddingParams params{
          .index = device_index.View(), .table = device_table.data(), .num_embeddings = 5, .out = device_out.View()};
      Run(params, cpu::Embedding, [](const auto&... all) { return cuda::Embedding(all...); });
      const Matrix out = device_out.ToHost();
      EXPECT_TRUE(out.MarginsAreUntouched());
      for (int64_t row = 0; row < index.rows; ++row) {
        const float number = numbers[static_cast<size_t>(row)];
        const bool is_there = number == 0 || number == 2 || number == 3 || number == 4;
        for (int32_t c = 0; c < channels; ++c) {
          if (!is_there) {
            EXPECT_TRUE(std::isnan(out.at(row, c))) << number;
          } else {
            EXPECT_EQ(out.at(row, c),
                      table[static_cast<size_t>(number) * static_cast<size_t>(channels) + static_cast<size_t>(c)])
                << number;
          }
        }
      }
    }
  }
}

TEST_P(RowKernelTest, GeneralisedMeansEqualTheNaiveLoop) {
  Random random(6);
  const std::vector<int64_t> begins = {0, 0, 1, 900, 4000};
  for (const int32_t channels : {1, 7, 70}) {
    const Matrix in(begins.back(), channels, {}, &random, dtype());
    for (const float exponent : {1.0f, 3.0f, 4.5f}) {
      const DeviceMatrix device_in(device(), dtype(), in);
      const DeviceMatrix device_out(device(), DType::kFloat32, Matrix(4, channels, {}, nullptr));
      const DeviceArray<int64_t> sample_begin(device(), begins);
      size_t workspace_bytes = 1;
      if constexpr (kHasCuda) workspace_bytes = cuda::SampleReduceWorkspaceBytes(4, channels);
      const DeviceArray<char> workspace(device(), workspace_bytes);
      const SampleReduceParams params{.sample_begin = sample_begin.data(),
                                      .reduce = PoolReduce::kAverage,
                                      .exponent = exponent,
                                      .least = 0.125f,
                                      .in = device_in.View(),
                                      .out = device_out.View(),
                                      .workspace = workspace.data()};
      Run(params, cpu::SampleReduce, [](const auto&... all) { return cuda::SampleReduce(all...); });
      const Matrix out = device_out.ToHost();
      for (int64_t s = 0; s < 4; ++s) {
        const auto first = begins[static_cast<size_t>(s)], last = begins[static_cast<size_t>(s) + 1];
        for (int32_t c = 0; c < channels; ++c) {
          double sum = 0;
          for (int64_t row = first; row < last; ++row) sum += std::pow(std::max(in.at(row, c), 0.125f), exponent);
          const double mean = sum / static_cast<double>(std::max<int64_t>(last - first, 1));
          ASSERT_NEAR(out.at(s, c), last == first ? 0 : std::pow(mean, 1 / double{exponent}), 2e-5)
              << "exponent " << exponent << ", sample " << s;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, RowKernelTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::row_operators_kernels_test
