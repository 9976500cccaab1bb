// Tests the kernel of MLPs on Hopper GPUs against plain loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/rows/mlp/mlp.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::mlp_cuda_test {
namespace {

using support::TestStream;

#define SKIP_WITHOUT_MLPS()    \
  SKIP_WITHOUT(Device::kCuda); \
  if (!cuda::SupportsMlp(DType::kFloat16)) GTEST_SKIP() << "the GPU has no kernel for MLPs"

struct Channels {
  int32_t in, hidden, out;
};

// What surrounds the two products.
struct Options {
  ActivationFunction activation = ActivationFunction::kGelu;
  bool has_input_norm = false;
  enum class Residual { kNone, kRows, kInput, kNormedInput } residual = Residual::kNone;
  int num_norms = 0;
  bool norms_have_residuals = false;

  std::string Name() const {
    return std::string(activation == ActivationFunction::kGelu ? "GELU" : "ReLU") +
           (has_input_norm ? ", input norm" : "") + ", residual " + std::to_string(static_cast<int>(residual)) + ", " +
           std::to_string(num_norms) + " norms" + (norms_have_residuals ? " with residuals" : "");
  }
};

// An MLP with random weights and rows, on the host and on the GPU.
class Mlp {
 public:
  Mlp(DType dtype, const Channels& channels, const Options& options, int64_t rows, uint32_t seed = 1)
      : dtype_(dtype),
        channels_(channels),
        options_(options),
        shape_(MlpShapeOf(channels.in, channels.hidden, channels.out)),
        random_(seed),
        first_(Weights(channels.in, channels.hidden)),
        second_(Weights(channels.hidden, channels.out)),
        hidden_bias_(random_.Floats(channels.hidden)),
        bias_(random_.Floats(channels.out)),
        in_(rows, channels.in, MarginsOf(channels.in), &random_, dtype),
        residual_(rows, channels.out, MarginsOf(channels.out), &random_, dtype),
        on_gpu_(dtype_, PackMlpWeights(channels.in, channels.hidden, channels.out, first_.data(), second_.data()),
                Padded(hidden_bias_, shape_.padded_hidden), Padded(bias_, shape_.padded_out), in_, residual_) {
    input_norm_ = std::make_unique<Norm>(*this, channels.in, shape_.padded_in, /*has_residual=*/false);
    for (int i = 0; i < options.num_norms; ++i) {
      norms_.push_back(std::make_unique<Norm>(*this, channels.out, shape_.padded_out, options.norms_have_residuals));
    }
  }

  int64_t rows() const { return in_.rows; }
  const Matrix& in() const { return in_; }

  MlpParams Params(const Rows& out) const {
    MlpParams params{.in = on_gpu_.in.View(),
                     .out = out,
                     .hidden_channels = channels_.hidden,
                     .weights = on_gpu_.weights.data(),
                     .hidden_bias = static_cast<const float*>(on_gpu_.hidden_bias.data()),
                     .bias = static_cast<const float*>(on_gpu_.bias.data()),
                     .activation = options_.activation,
                     .num_norms = options_.num_norms};
    if (options_.has_input_norm) params.input_norm = input_norm_->Params();
    if (options_.residual == Options::Residual::kNormedInput) params.adds_normed_input = true;
    if (options_.residual == Options::Residual::kRows) params.residual = on_gpu_.residual.View();
    if (options_.residual == Options::Residual::kInput) params.residual = params.in;
    for (int i = 0; i < options_.num_norms; ++i) params.norms[i] = norms_[static_cast<size_t>(i)]->Params();
    return params;
  }

  // Runs the kernel on all rows.
  Matrix Run() const {
    const Matrix untouched(rows(), channels_.out, MarginsOf(channels_.out), nullptr);
    const DeviceMatrix out(Device::kCuda, dtype_, untouched);
    EXPECT_EQ(cuda::Mlp(Params(out.View()), TestStream()), cudaSuccess);
    support::Synchronize();
    return out.ToHost();
  }

  // Compares a row with plain loops.
  void ExpectRow(const Matrix& out, int64_t row) const {
    const double roundoff = dtype_ == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    std::vector<double> y = Row(in_, row);
    if (options_.has_input_norm) {
      y = Normalized(*input_norm_, y, row);
      for (double& value : y) value = Rounded(dtype_, static_cast<float>(value));
    }
    std::vector<double> values(bias_.begin(), bias_.end()), magnitudes(values.size());
    for (size_t o = 0; o < values.size(); ++o) magnitudes[o] = std::abs(values[o]);
    for (int32_t h = 0; h < channels_.hidden; ++h) {
      double hidden = hidden_bias_[static_cast<size_t>(h)];
      for (int32_t i = 0; i < channels_.in; ++i) {
        hidden += y[static_cast<size_t>(i)] * first_[static_cast<size_t>(i * channels_.hidden + h)];
      }
      hidden = options_.activation == ActivationFunction::kGelu ? 0.5 * hidden * std::erfc(-hidden * std::sqrt(0.5))
                                                                : std::max(hidden, 0.0);
      const double rounded = Rounded(dtype_, static_cast<float>(hidden));
      for (size_t o = 0; o < values.size(); ++o) {
        const double weight = second_[static_cast<size_t>(h * channels_.out) + o];
        values[o] += rounded * weight;
        // A normed input may be rounded the other way, which moves the hidden value by about a rounding.
        magnitudes[o] += (std::abs(rounded) + (options_.has_input_norm ? 0.5 : 0.01)) * std::abs(weight);
      }
    }
    const bool adds_in = options_.residual == Options::Residual::kInput;
    const std::vector<double> residual = options_.residual == Options::Residual::kRows ? Row(residual_, row)
                                         : adds_in                                     ? Row(in_, row)
                                         : options_.residual == Options::Residual::kNormedInput
                                             ? y
                                             : std::vector<double>(values.size());
    for (size_t o = 0; o < values.size(); ++o) {
      values[o] += residual[o];
      magnitudes[o] += std::abs(residual[o]);
    }
    std::vector<double> errors;
    for (const double magnitude : magnitudes) errors.push_back(2 * roundoff * magnitude);
    for (const auto& norm : norms_) {
      double deviation = 0;
      const std::vector<double> before = values;
      values = Normalized(*norm, values, row, &deviation);
      const double largest = *std::max_element(errors.begin(), errors.end());
      for (size_t o = 0; o < values.size(); ++o) {
        errors[o] = largest / deviation * 3 * std::abs(norm->weight[o]) * (1 + std::abs(before[o]) / deviation);
      }
    }
    for (size_t o = 0; o < values.size(); ++o) {
      const double tolerance = errors[o] + 2 * roundoff * std::abs(values[o]) + 1e-6;
      ASSERT_NEAR(out.at(row, static_cast<int64_t>(o)), values[o], tolerance) << "row " << row << " channel " << o;
    }
  }

  // Runs the kernel, and compares all rows, or some of many.
  void ExpectRows() const {
    SCOPED_TRACE(std::string(NameOf(dtype_)) + ", " + std::to_string(channels_.in) + " to " +
                 std::to_string(channels_.hidden) + " to " + std::to_string(channels_.out) + " channels, " +
                 std::to_string(rows()) + " rows, " + options_.Name());
    const Matrix out = Run();
    EXPECT_TRUE(out.MarginsAreUntouched());
    constexpr int64_t kMostRows = 40;
    const int64_t step = std::max<int64_t>(rows() / kMostRows, 1);
    for (int64_t row = 0; row < rows(); row += step) {
      ASSERT_NO_FATAL_FAILURE(ExpectRow(out, row));
    }
    for (int64_t row = std::max<int64_t>(rows() - 3, 0); row < rows(); ++row) {
      ASSERT_NO_FATAL_FAILURE(ExpectRow(out, row));
    }
  }

 private:
  struct Norm {
    int32_t channels;
    float epsilon = 1e-3f;
    std::vector<float> weight, bias;
    std::optional<Matrix> residual;
    DeviceValues weight_on_gpu, bias_on_gpu;
    std::optional<DeviceMatrix> residual_on_gpu;

    Norm(Mlp& mlp, int32_t c, int32_t padded, bool has_residual)
        : channels(c),
          weight(mlp.random_.Floats(c)),
          bias(mlp.random_.Floats(c)),
          weight_on_gpu(Device::kCuda, DType::kFloat32, Padded(weight, padded)),
          bias_on_gpu(Device::kCuda, DType::kFloat32, Padded(bias, padded)) {
      if (!has_residual) return;
      residual.emplace(mlp.rows(), c, MarginsOf(c), &mlp.random_, mlp.dtype_);
      residual_on_gpu.emplace(Device::kCuda, mlp.dtype_, *residual);
    }
    MlpNorm Params() const {
      return {.weight = static_cast<const float*>(weight_on_gpu.data()),
              .bias = static_cast<const float*>(bias_on_gpu.data()),
              .epsilon = epsilon,
              .residual = residual_on_gpu ? ConstRows(residual_on_gpu->View()) : ConstRows()};
    }
  };
  struct OnGpu {
    DeviceValues weights, hidden_bias, bias;
    DeviceMatrix in, residual;

    OnGpu(DType dtype, const std::vector<float>& packed, const std::vector<float>& padded_hidden_bias,
          const std::vector<float>& padded_bias, const Matrix& rows, const Matrix& of_residual)
        : weights(Device::kCuda, dtype, packed),
          hidden_bias(Device::kCuda, DType::kFloat32, padded_hidden_bias),
          bias(Device::kCuda, DType::kFloat32, padded_bias),
          in(Device::kCuda, dtype, rows),
          residual(Device::kCuda, dtype, of_residual) {}
  };

  // Rows with a column of padding at least, and aligned to 8 values.
  static Margins MarginsOf(int32_t channels) { return {.before = 8, .after = 16 - channels % 8}; }
  static std::vector<float> Padded(std::vector<float> values, int32_t size) {
    values.resize(static_cast<size_t>(size));
    return values;
  }
  std::vector<float> Weights(int32_t in, int32_t out) {
    std::vector<float> weights = random_.Floats(int64_t{in} * out);
    const float gain = 1.5f / std::sqrt(static_cast<float>(in));
    for (float& weight : weights) weight = Rounded(dtype_, weight * gain);
    return weights;
  }
  static std::vector<double> Row(const Matrix& matrix, int64_t row) {
    std::vector<double> values;
    for (int64_t c = 0; c < matrix.channels; ++c) values.push_back(matrix.at(row, c));
    return values;
  }
  static std::vector<double> Normalized(const Norm& norm, const std::vector<double>& values, int64_t row,
                                        double* deviation = nullptr) {
    double mean = 0, variance = 0;
    for (const double value : values) mean += value / static_cast<double>(values.size());
    for (const double value : values) variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
    const double root = std::sqrt(variance + double{norm.epsilon});
    if (deviation != nullptr) *deviation = root;
    std::vector<double> normalized;
    for (size_t c = 0; c < values.size(); ++c) {
      normalized.push_back((values[c] - mean) / root * double{norm.weight[c]} + double{norm.bias[c]} +
                           (norm.residual ? norm.residual->at(row, static_cast<int64_t>(c)) : 0.0));
    }
    return normalized;
  }

  DType dtype_;
  Channels channels_;
  Options options_;
  MlpShape shape_;
  Random random_;
  std::vector<float> first_, second_, hidden_bias_, bias_;
  Matrix in_, residual_;
  OnGpu on_gpu_;
  std::unique_ptr<Norm> input_norm_;
  std::vector<std::unique_ptr<Norm>> norms_;
};

using Residual = Options::Residual;

// The MLP of PTv3 and LitePT, and that of DSVT and FlatFormer.
constexpr Options kPreNorm{.has_input_norm = true, .residual = Residual::kInput};
constexpr Options kPostNorm{
    .has_input_norm = true, .residual = Residual::kNormedInput, .num_norms = 2, .norms_have_residuals = true};

class MlpCudaTest : public testing::TestWithParam<DType> {};

TEST_P(MlpCudaTest, EqualsPlainLoopsForEveryNumberOfChannels) {
  SKIP_WITHOUT_MLPS();
  for (const int32_t c : {32, 64, 96, 128, 192, 256}) {
    for (const int32_t hidden : {2 * c, 4 * c}) {
      for (const Options& options : {kPreNorm, kPostNorm}) {
        Mlp(GetParam(), {c, hidden, c}, options, 300).ExpectRows();
      }
    }
  }
}

TEST_P(MlpCudaTest, EqualsPlainLoopsForEveryNumberOfRows) {
  SKIP_WITHOUT_MLPS();
  for (const int64_t rows : {0, 1, 63, 64, 65, 127, 128, 129, 1000, 30001, 100003}) {
    for (const Channels& channels : {Channels{32, 128, 32}, {128, 512, 128}, {192, 384, 192}, {256, 1024, 256}}) {
      Mlp(GetParam(), channels, kPreNorm, rows).ExpectRows();
    }
  }
}

TEST_P(MlpCudaTest, EqualsPlainLoopsWithWhateverSurroundsTheProducts) {
  SKIP_WITHOUT_MLPS();
  for (const auto activation : {ActivationFunction::kGelu, ActivationFunction::kRelu}) {
    for (const bool has_input_norm : {false, true}) {
      for (const auto residual : {Residual::kNone, Residual::kRows, Residual::kInput, Residual::kNormedInput}) {
        for (const int num_norms : {0, 1, 3}) {
          for (const bool have_residuals : {false, true}) {
            const Options options{activation, has_input_norm, residual, num_norms, have_residuals};
            Mlp(GetParam(), {64, 256, 64}, options, 129).ExpectRows();
            Mlp(GetParam(), {192, 384, 192}, options, 129).ExpectRows();
          }
        }
      }
    }
  }
}

TEST_P(MlpCudaTest, EqualsPlainLoopsForChannelsThatFillNoVectors) {
  SKIP_WITHOUT_MLPS();
  for (const Channels& channels : {Channels{36, 144, 36},
                                   {72, 288, 72},
                                   {144, 576, 144},
                                   {252, 1008, 252},
                                   {1, 3, 1},
                                   {27, 65, 27},
                                   {101, 130, 101}}) {
    for (const Options& options : {kPreNorm, kPostNorm}) {
      Mlp(GetParam(), channels, options, 200).ExpectRows();
    }
  }
}

TEST_P(MlpCudaTest, EqualsPlainLoopsForOtherInputsThanOutputs) {
  SKIP_WITHOUT_MLPS();
  for (const Channels& channels : {Channels{3, 192, 192},
                                   {2, 128, 128},
                                   {32, 100, 190},
                                   {30, 64, 256},
                                   {40, 80, 10},
                                   {10, 80, 40},
                                   {256, 64, 3}}) {
    for (const bool has_norms : {false, true}) {
      const Options options{.activation = ActivationFunction::kRelu,
                            .has_input_norm = has_norms,
                            .residual = Residual::kRows,
                            .num_norms = has_norms ? 1 : 0};
      Mlp(GetParam(), channels, options, 1000).ExpectRows();
    }
  }
}

// A row has the same bytes alone, among others, and in another place of a tile.
TEST_P(MlpCudaTest, RowsDoNotDependOnOtherRows) {
  SKIP_WITHOUT_MLPS();
  constexpr int64_t kRows = 20000;
  for (const Channels& channels :
       {Channels{32, 128, 32}, {64, 256, 64}, {128, 512, 128}, {192, 384, 192}, {252, 1008, 252}, {3, 192, 192}}) {
    Options options{.has_input_norm = true, .residual = Residual::kRows, .num_norms = 1, .norms_have_residuals = true};
    const Mlp mlp(GetParam(), channels, options, kRows);
    const Matrix all = mlp.Run();
    for (const auto& [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {77, 78}, {19999, 20000}, {5, 205}}) {
      SCOPED_TRACE(std::to_string(channels.in) + " channels, rows from " + std::to_string(begin));
      const DeviceMatrix aligned(Device::kCuda, GetParam(),
                                 Matrix(end - begin, (channels.out + 7) / 8 * 8, {}, nullptr));
      Rows rows = aligned.View();
      rows.channels = channels.out;
      MlpParams params = mlp.Params(rows);
      params.in = params.in.RowRange(begin, end);
      params.residual = params.residual.RowRange(begin, end);
      params.norms[0].residual = params.norms[0].residual.RowRange(begin, end);
      ASSERT_EQ(cuda::Mlp(params, TestStream()), cudaSuccess);
      const Matrix some = aligned.ToHost();
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < channels.out; ++c) {
          ASSERT_EQ(some.at(row - begin, c), all.at(row, c)) << "row " << row << " channel " << c;
        }
      }
    }
  }
}

TEST_P(MlpCudaTest, RowsBehindTheTrueNumberAreUntouched) {
  SKIP_WITHOUT_MLPS();
  for (const Channels& channels : {Channels{64, 256, 64}, {256, 1024, 256}}) {
    for (const int64_t true_rows : {0, 1, 129, 5000}) {
      const Mlp mlp(GetParam(), channels, kPreNorm, 6000);
      const DeviceMatrix out(Device::kCuda, GetParam(), Matrix(6000, channels.out, {}, nullptr));
      const DeviceArray<int64_t> num_rows(Device::kCuda, std::vector<int64_t>{true_rows});
      Rows rows = out.View();
      rows.num_rows = num_rows.data();
      ASSERT_EQ(cuda::Mlp(mlp.Params(rows), TestStream()), cudaSuccess);
      const Matrix result = out.ToHost();
      for (int64_t row = 0; row < true_rows; row += 37) ASSERT_NO_FATAL_FAILURE(mlp.ExpectRow(result, row));
      for (int64_t row = true_rows; row < 6000; ++row) {
        for (int64_t c = 0; c < channels.out; ++c) ASSERT_EQ(result.at(row, c), kUntouched) << "row " << row;
      }
    }
  }
}

// Values that are not finite stay in their rows.
TEST_P(MlpCudaTest, NanStaysInItsRow) {
  SKIP_WITHOUT_MLPS();
  const Channels channels{128, 512, 128};
  const Mlp mlp(GetParam(), channels, kPreNorm, 70);
  const Matrix expected = mlp.Run();
  Matrix with_nan = mlp.in();
  with_nan.at(33, 5) = std::numeric_limits<float>::quiet_NaN();
  const DeviceMatrix in(Device::kCuda, GetParam(), with_nan);
  const DeviceMatrix out(Device::kCuda, GetParam(), Matrix(70, channels.out, {}, nullptr));
  MlpParams params = mlp.Params(out.View());
  params.in = in.View();
  params.residual = in.View();
  ASSERT_EQ(cuda::Mlp(params, TestStream()), cudaSuccess);
  const Matrix found = out.ToHost();
  for (int64_t row = 0; row < 70; ++row) {
    for (int64_t c = 0; c < channels.out; ++c) {
      if (row == 33) {
        EXPECT_TRUE(std::isnan(found.at(row, c))) << c;
      } else {
        ASSERT_EQ(found.at(row, c), expected.at(row, c)) << "row " << row;
      }
    }
  }
}

TEST_P(MlpCudaTest, RefusesWhatItCannotCompute) {
  SKIP_WITHOUT_MLPS();
  const Mlp mlp(GetParam(), {64, 256, 64}, kPreNorm, 10);
  const DeviceMatrix out(Device::kCuda, GetParam(), Matrix(10, 64, {}, nullptr));
  const MlpParams good = mlp.Params(out.View());
  EXPECT_EQ(cuda::Mlp(good, TestStream()), cudaSuccess);
  const auto expect_refused = [&](const char* what, const auto& spoil) {
    MlpParams params = good;
    spoil(params);
    EXPECT_EQ(cuda::Mlp(params, TestStream()), cudaErrorInvalidValue) << what;
  };
  expect_refused("float32", [](MlpParams& p) { p.in.dtype = p.out.dtype = p.residual.dtype = DType::kFloat32; });
  expect_refused("input of another type", [](MlpParams& p) { p.in.dtype = DType::kFloat32; });
  expect_refused("residual of another type", [](MlpParams& p) { p.residual.dtype = DType::kFloat32; });
  expect_refused("residual of other channels", [](MlpParams& p) { p.residual.channels = 32; });
  expect_refused("two residuals", [](MlpParams& p) { p.adds_normed_input = true; });
  expect_refused("hidden channels", [](MlpParams& p) { p.hidden_channels = 1025; });
  expect_refused("input channels", [](MlpParams& p) { p.in.channels = 257; });
  expect_refused("activation", [](MlpParams& p) { p.activation = ActivationFunction::kSilu; });
  expect_refused("number of norms", [](MlpParams& p) { p.num_norms = 4; });
  expect_refused("norm without weights", [](MlpParams& p) { p.num_norms = 1; });
  expect_refused("rows that are not aligned", [](MlpParams& p) { p.in.pitch += 1; });
  expect_refused("columns that are not aligned", [](MlpParams& p) { p.out.data = static_cast<char*>(p.out.data) + 2; });
  expect_refused("fewer rows of the input", [](MlpParams& p) { p.in.capacity = 9; });
}

INSTANTIATE_TEST_SUITE_P(DTypes, MlpCudaTest, testing::Values(DType::kFloat16, DType::kBfloat16),
                         [](const auto& dtype) { return std::string(NameOf(dtype.param)); });

}  // namespace
}  // namespace voxserve::kernels::mlp_cuda_test
