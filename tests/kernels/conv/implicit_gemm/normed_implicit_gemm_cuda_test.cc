// Tests an implicit GEMM that computes the layer norms of its rows (kernels/conv/implicit_gemm/normed_implicit_gemm.h).
// Its bytes must be those of a convolution and a norm, whichever block computes them, and both must be near naive loops
// in double.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"
#include "kernels/core/device_code.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::normed_implicit_gemm_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

class NormedImplicitGemmTest : public ImplicitGemmTest {
 protected:
  void SetUp() override {
    ImplicitGemmTest::SetUp();
    if (!IsSkipped() && cuda::CodeVersion() != cuda::kWarpGroupCode) GTEST_SKIP() << "no kernel of warp groups";
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, NormedImplicitGemmTest, testing::Values(DType::kFloat16, DType::kBfloat16), DTypeName);

struct Case {
  const RulebookCase* rulebook;
  int32_t in_channels, channels;
  DType dtype;
  bool has_bias, has_norm_weights, has_residual, writes_on_residual, has_second;
  Margins margins;  // of the norms' rows, at multiples of 16 bytes
  int64_t spare_rows;
  int32_t shortcut_channels = 0;
  bool is_linear = false;  // without the tiles form
};

// Values of rows, and by how much a kernel's may differ from them.
struct Near {
  Matrix values, tolerances;
};

// Returns the layer norm in double. Null weights and biases: 1 and 0.
Near NaiveNorm(const Near& in, double epsilon, const std::vector<float>* weights, const std::vector<float>* biases,
               const Matrix* residual, DType dtype) {
  Near out = in;
  const int64_t channels = in.values.channels;
  for (int64_t row = 0; row < in.values.rows; ++row) {
    double mean = 0, variance = 0, tolerance = 0;
    for (int64_t c = 0; c < channels; ++c) {
      mean += in.values.at(row, c) / static_cast<double>(channels);
      tolerance = std::max<double>(tolerance, in.tolerances.at(row, c));
    }
    for (int64_t c = 0; c < channels; ++c) {
      variance += std::pow(in.values.at(row, c) - mean, 2) / static_cast<double>(channels);
    }
    const double scale = 1 / std::sqrt(variance + epsilon);
    for (int64_t c = 0; c < channels; ++c) {
      const double weight = weights == nullptr ? 1 : (*weights)[static_cast<size_t>(c)];
      const double bias = biases == nullptr ? 0 : (*biases)[static_cast<size_t>(c)];
      const double of_residual = residual == nullptr ? 0 : residual->at(row, c);
      const double normed = (in.values.at(row, c) - mean) * scale * weight;
      out.values.at(row, c) = static_cast<float>(normed + bias + of_residual);
      // An error of the mean and one of the scale add to the value's own.
      const double of_input = tolerance * scale * (2 * std::abs(weight) + std::abs(normed));
      const double magnitude = std::abs(normed) + std::abs(bias) + std::abs(of_residual);
      out.tolerances.at(row, c) = static_cast<float>(of_input + Tolerance(dtype, magnitude));
    }
  }
  return out;
}

void ExpectNear(const Near& expected, const Matrix& found) {
  for (int64_t row = 0; row < expected.values.rows; ++row) {
    for (int64_t c = 0; c < expected.values.channels; ++c) {
      ASSERT_NEAR(found.at(row, c), expected.values.at(row, c), expected.tolerances.at(row, c))
          << "row " << row << " channel " << c;
    }
  }
}

// Runs a case with two kernels, and with one kernel and every block that holds whole rows.
void Check(const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c.rulebook->name << ", " << c.in_channels << " + " << c.shortcut_channels << " to "
                                  << c.channels << " channels, bias " << c.has_bias << ", weights "
                                  << c.has_norm_weights << ", residual " << c.has_residual << c.writes_on_residual
                                  << ", second " << c.has_second << ", margins " << c.margins.before << "+"
                                  << c.margins.after << ", spare rows " << c.spare_rows);
  const RulebookView rulebook = c.rulebook->View();
  const int64_t num_rows = rulebook.num_out_rows, capacity = num_rows + c.spare_rows;
  const NeighbourTable table = Neighbours(rulebook, num_rows);
  Matrix in(rulebook.num_in_rows, c.in_channels, {}, &random, c.dtype);
  const Matrix shortcut(capacity, std::max(c.shortcut_channels, 8), {}, &random, c.dtype);
  const std::vector<float> weights = random.Floats(int64_t{rulebook.num_offsets} * c.in_channels * c.channels, c.dtype);
  const std::vector<float> shortcut_weights = random.Floats(int64_t{c.shortcut_channels} * c.channels, c.dtype);
  const std::vector<float> bias = random.Floats(c.channels);
  const std::vector<float> norm_weights[] = {random.Floats(c.channels), random.Floats(c.channels)};
  const std::vector<float> norm_biases[] = {random.Floats(c.channels), random.Floats(c.channels)};
  constexpr float kEpsilons[] = {1e-3f, 1e-2f};
  Matrix residual = OutBefore(num_rows, capacity, c.channels, c.margins);
  const std::vector<float> of_residual = random.Floats(num_rows * c.channels, c.dtype);
  for (size_t i = 0; i < of_residual.size(); ++i) {
    residual.at(static_cast<int64_t>(i) / c.channels, static_cast<int64_t>(i) % c.channels) = of_residual[i];
  }

  const Expected sums =
      NaiveConvolution(rulebook, in, weights, c.channels, c.has_bias ? &bias : nullptr, nullptr, false);
  const Rulebook identity = RandomSubmanifoldRulebook(1, num_rows, 0, random);
  const Expected of_shortcut = c.shortcut_channels == 0 ? Expected(num_rows, c.channels)
                                                        : NaiveConvolution(identity.View(), shortcut, shortcut_weights,
                                                                           c.channels, nullptr, nullptr, false);
  Near convolved{Matrix(num_rows, c.channels, {}, nullptr), Matrix(num_rows, c.channels, {}, nullptr)};
  for (size_t i = 0; i < sums.values.size(); ++i) {
    const double magnitude = sums.magnitudes[i] + of_shortcut.magnitudes[i];
    convolved.values.values[i] = static_cast<float>(sums.values[i] + of_shortcut.values[i]);
    convolved.tolerances.values[i] = static_cast<float>(GemmTolerance(c.dtype, magnitude));
  }
  const auto norm_of = [&](const Near& values, size_t norm, const Matrix* added) {
    return NaiveNorm(values, kEpsilons[norm], c.has_norm_weights ? &norm_weights[norm] : nullptr,
                     c.has_norm_weights ? &norm_biases[norm] : nullptr, added, c.dtype);
  };
  const Near first = norm_of(convolved, 0, c.has_residual ? &residual : nullptr), second = norm_of(first, 1, nullptr);

  const DeviceMatrix device_in(Device::kCuda, c.dtype, in), device_shortcut(Device::kCuda, c.dtype, shortcut);
  const DeviceMatrix device_residual(Device::kCuda, c.dtype, residual);
  const DeviceValues device_weights = PackedWeights(rulebook.num_offsets, c.in_channels, c.channels, c.dtype, weights);
  const DeviceValues device_shortcut_weights =
      PackedWeights(1, std::max(c.shortcut_channels, 8), c.channels, c.dtype,
                    c.shortcut_channels > 0 ? shortcut_weights : random.Floats(int64_t{8} * c.channels));
  const DeviceArray<float> device_bias(Device::kCuda, bias);
  const DeviceArray<float> first_weight(Device::kCuda, norm_weights[0]), first_bias(Device::kCuda, norm_biases[0]),
      second_weight(Device::kCuda, norm_weights[1]), second_bias(Device::kCuda, norm_biases[1]);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), capacity);
  TilesView view = tiles.View();
  if (c.is_linear) {
    view = {.num_offsets = 1, .counters = view.counters, .num_out = view.num_out, .out_capacity = capacity};
  }

  struct Results {
    DeviceMatrix convolved, first, second;
  };
  const auto new_results = [&] {
    const Matrix before = OutBefore(num_rows, capacity, c.channels, c.margins);
    return Results{{Device::kCuda, c.dtype, OutBefore(num_rows, capacity, c.channels, {})},
                   {Device::kCuda, c.dtype, c.writes_on_residual ? residual : before},
                   {Device::kCuda, c.dtype, before}};
  };
  const auto params_of = [&](const Results& results, const ConvBlock& block) {
    ImplicitGemmParams params{.tiles = view,
                              .operands = {.in = device_in.View(),
                                           .out = results.convolved.View(),
                                           .weights = device_weights.data(),
                                           .epilogue = {.bias = c.has_bias ? device_bias.data() : nullptr}},
                              .block = block};
    if (c.shortcut_channels > 0) {
      params.operands.shortcut_in = device_shortcut.View();
      params.operands.shortcut_weights = device_shortcut_weights.data();
    }
    return params;
  };
  const auto params_of_norm = [&](const Results& results) {
    const auto rows_of = [&](const DeviceMatrix& matrix) {
      Rows rows = matrix.View();
      rows.num_rows = view.num_out;
      return rows;
    };
    RowNormParams params{.kind = RowNorm::kLayerNorm,
                         .epsilon = kEpsilons[0],
                         .in = rows_of(results.convolved),
                         .out = rows_of(results.first)};
    if (c.has_norm_weights) {
      params.weight = first_weight.data();
      params.bias = first_bias.data();
    }
    if (c.has_residual) params.residual = rows_of(c.writes_on_residual ? results.first : device_residual);
    if (!c.has_second) return params;
    params.second = {.epsilon = kEpsilons[1], .out = rows_of(results.second)};
    if (c.has_norm_weights) {
      params.second.weight = second_weight.data();
      params.second.bias = second_bias.data();
    }
    return params;
  };

  const Results expected = new_results();
  ExpectCudaSuccess(RunImplicitGemm(params_of(expected, {})));
  ExpectCudaSuccess(cuda::NormalizeRows(params_of_norm(expected), TestStream()));
  support::Synchronize();
  ExpectNear(first, expected.first.ToHost());
  if (c.has_second) ExpectNear(second, expected.second.ToHost());
  if (testing::Test::HasFatalFailure()) return;
  int num_fused = 0;
  for (const ConvBlock& block : AllBlocks(c.dtype, c.channels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    const Results results = new_results();
    const ImplicitGemmParams params = params_of(results, block);
    const RowNormParams norm = params_of_norm(results);
    const bool is_fused = cuda::ImplicitGemmNorms(params, norm);
    if (block.rows > 0) {
      // 32 and 256 columns have a kernel with norms for blocks of 64 rows alone.
      const bool has_kernel = block.rows == 64 || block.columns == 64 || block.columns == 128;
      ASSERT_EQ(is_fused, block.columns == c.channels && block.split_k == 1 && !block.uses_mma_sync && has_kernel);
    }
    const cudaError_t status = cuda::NormedImplicitGemm(params, norm, TestStream());
    support::Synchronize();
    if (!is_fused) {
      EXPECT_EQ(status, cudaErrorInvalidValue);
      continue;
    }
    ++num_fused;
    ExpectCudaSuccess(status);
    ExpectUntouched(results.first.ToHost(), num_rows);
    ExpectUntouched(results.second.ToHost(), num_rows);
    ExpectNear(first, results.first.ToHost());
    ASSERT_EQ(results.first.Bytes(), expected.first.Bytes());
    ASSERT_EQ(results.second.Bytes(), expected.second.Bytes());
    ASSERT_EQ(results.convolved.Bytes(), new_results().convolved.Bytes());
    const std::vector<int32_t> counters = tiles.Counters();
    ASSERT_EQ(std::count(counters.begin(), counters.end(), 0), static_cast<ptrdiff_t>(counters.size()));
  }
  EXPECT_GE(num_fused, c.channels == 32 || c.channels == 256 ? 1 : 2);
}

TEST_P(NormedImplicitGemmTest, HasTheBytesOfTwoKernels) {
  Random random(81);
  for (const RulebookCase& rulebook : RulebookCases(random)) {
    if (rulebook.View().num_out_rows == 0) continue;
    for (const int32_t channels : {32, 64, 128, 256}) {
      const bool has_residual = random.Chance(0.7);
      Check({.rulebook = &rulebook,
             .in_channels = random.OneOf(std::vector<int32_t>{8, 16, 30, 32, 64, 96}),
             .channels = channels,
             .dtype = GetParam(),
             .has_bias = random.Chance(0.7),
             .has_norm_weights = random.Chance(0.7),
             .has_residual = has_residual,
             .writes_on_residual = has_residual && random.Chance(0.3),
             .has_second = random.Chance(0.7),
             .margins = random.OneOf(std::vector<Margins>{{}, {.before = 8, .after = 16}, {.after = 8}}),
             .spare_rows = random.OneOf(std::vector<int64_t>{0, 7, 400})},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

// The numbers of rows end within, at and behind the ends of tiles; the largest gives every multiprocessor several
// tiles.
TEST_P(NormedImplicitGemmTest, RowsAroundATile) {
  Random random(82);
  for (const int64_t num_rows : {1, 63, 64, 65, 127, 128, 129, 5 * 64 * cuda::NumSms()}) {
    const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(9, num_rows, 0.2, random)};
    for (const int32_t channels : {32, 64, 128, 256}) {
      Check({.rulebook = &rulebook,
             .in_channels = 16,
             .channels = channels,
             .dtype = GetParam(),
             .has_bias = true,
             .has_norm_weights = true,
             .has_residual = true,
             .writes_on_residual = false,
             .has_second = true,
             .margins = {},
             .spare_rows = 1},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(NormedImplicitGemmTest, WithAShortcutAndOfALinearLayer) {
  Random random(83);
  const RulebookCase submanifold{"submanifold", RandomSubmanifoldRulebook(27, 300, 0.2, random)};
  const RulebookCase linear{"linear", RandomSubmanifoldRulebook(1, 300, 0, random)};
  for (const int32_t channels : {32, 64, 128, 256}) {
    Case one{.rulebook = &submanifold,
             .in_channels = 32,
             .channels = channels,
             .dtype = GetParam(),
             .has_bias = true,
             .has_norm_weights = true,
             .has_residual = false,
             .writes_on_residual = false,
             .has_second = true,
             .margins = {},
             .spare_rows = 5,
             .shortcut_channels = 40};
    Check(one, random);
    one.rulebook = &linear;
    one.shortcut_channels = 0;
    one.has_residual = true;
    one.is_linear = true;
    Check(one, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(NormedImplicitGemmTest, WhatItCannotNormIsRefused) {
  const DType dtype = GetParam();
  Random random(84);
  constexpr int32_t kChannels = 64, kOffsets = 5;
  constexpr int64_t kRows = 64;
  const NeighbourTable table = RandomNeighbours(Presence::kRandom, 0.3, kOffsets, kRows, kRows, kRows, random);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceMatrix in(Device::kCuda, dtype, Matrix(kRows, kChannels, {}, &random, dtype));
  const DeviceMatrix out(Device::kCuda, dtype, OutBefore(kRows, kRows, kChannels, {.after = 8})),
      second(Device::kCuda, dtype, OutBefore(kRows, kRows, kChannels, {.after = 8}));
  const DeviceValues weights =
      PackedWeights(kOffsets, kChannels, kChannels, dtype, random.Floats(kOffsets * kChannels * kChannels));
  const ImplicitGemmParams good{.tiles = tiles.View(),
                                .operands = {.in = in.View(), .out = out.View(), .weights = weights.data()}};
  const RowNormParams good_norm{.kind = RowNorm::kLayerNorm,
                                .epsilon = 1e-5f,
                                .residual = in.View(),
                                .in = out.View(),
                                .out = out.View(),
                                .second = {.epsilon = 1e-5f, .out = second.View()}};
  const auto expect_refused = [&](const auto& spoil) {
    ImplicitGemmParams params = good;
    RowNormParams norm = good_norm;
    spoil(params, norm);
    EXPECT_FALSE(cuda::ImplicitGemmNorms(params, norm));
    EXPECT_EQ(cuda::NormedImplicitGemm(params, norm, TestStream()), cudaErrorInvalidValue);
  };
  const auto move = [&](auto& rows) {
    rows.data = reinterpret_cast<decltype(rows.data)>(reinterpret_cast<intptr_t>(rows.data) + SizeOf(dtype));
  };
  const DType other = dtype == DType::kFloat16 ? DType::kBfloat16 : DType::kFloat16;
  expect_refused([&](auto&, auto& norm) { move(norm.out); });
  expect_refused([&](auto&, auto& norm) { move(norm.second.out); });
  expect_refused([&](auto&, auto& norm) { move(norm.residual); });
  expect_refused([&](auto&, auto& norm) { --norm.out.pitch; });
  expect_refused([&](auto&, auto& norm) { norm.out.dtype = DType::kFloat32; });
  expect_refused([&](auto&, auto& norm) { norm.second.out.dtype = other; });
  expect_refused([&](auto&, auto& norm) { norm.residual.dtype = other; });
  expect_refused([&](auto&, auto& norm) { norm.kind = RowNorm::kL2; });
  expect_refused([&](auto&, auto& norm) { norm.activation = ActivationFunction::kRelu; });
  expect_refused([&](auto& params, auto&) { params.operands.epilogue.activation = ActivationFunction::kRelu; });
  expect_refused([&](auto& params, auto&) { params.operands.epilogue.residual = in.View(); });
  expect_refused([&](auto& params, auto&) { params.operands.out.channels = 48; });
  expect_refused([&](auto& params, auto&) { params.operands.in.dtype = DType::kFloat32; });
  expect_refused([&](auto& params, auto& norm) {
    for (Rows* const rows : {&params.operands.out, &norm.out, &norm.second.out}) {
      rows->dtype = DType::kInt8;
      rows->pitch = kChannels;
    }
    params.operands.in.dtype = norm.residual.dtype = DType::kInt8;
  });
  expect_refused([&](auto& params, auto&) { params.block = {.rows = 64, .columns = 32, .split_k = 1}; });
  support::Synchronize();
  ExpectUntouched(out.ToHost(), kRows);
  EXPECT_TRUE(cuda::ImplicitGemmNorms(good, good_norm));
  EXPECT_EQ(cuda::NormedImplicitGemm(good, good_norm, TestStream()), cudaSuccess);
  support::Synchronize();
}

}  // namespace
}  // namespace voxserve::kernels::normed_implicit_gemm_cuda_test
