// Compares the kernel for linear layers (linear_rows.h), with each shape of its blocks, with the kernels of warp groups
// that read rulebooks: all must give the same bytes. implicit_gemm_cuda_test.cc compares those with naive loops, and
// implicit_gemm_chain_cuda_test.cc launches this kernel among others, and from captured graphs.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/linear_rows.h"
#include "kernels/core/device_code.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::linear_rows_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

struct Case {
  int64_t num_rows, spare_rows;
  int32_t in_channels, out_channels;
  DType out_dtype;
  bool has_bias = true, has_residual = false, in_place = false;
  Activation activation = ActivationFunction::kNone;
  Margins in_margins = {}, out_margins = {};
  int64_t bias_begin = 0;  // number of floats before the bias, which changes its alignment
  int32_t head_pairs = 0;  // 0: nothing is rotated
  int32_t rotated_columns = 0;
};

std::ostream& operator<<(std::ostream& os, const Case& c) {
  return os << c.num_rows << " rows and " << c.spare_rows << " spare ones, " << c.in_channels << " to "
            << c.out_channels << " channels, to " << NameOf(c.out_dtype) << ", bias " << c.has_bias << " from "
            << c.bias_begin << ", residual " << c.has_residual << ", in place " << c.in_place << ", activation "
            << static_cast<int>(c.activation.function) << ", margins " << c.in_margins.before << "+"
            << c.in_margins.after << " " << c.out_margins.before << "+" << c.out_margins.after << ", " << c.head_pairs
            << " pairs a head in " << c.rotated_columns << " columns";
}

// Returns margins with which rows are aligned to 16 bytes.
Margins AlignedMargins(int32_t channels, int64_t before, int64_t spare) {
  return {.before = before, .after = (8 - channels % 8) % 8 + spare};
}

class LinearRowsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if (cuda::CodeVersion() != cuda::kWarpGroupCode) GTEST_SKIP() << "not served by this GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, LinearRowsTest, testing::Values(DType::kFloat16, DType::kBfloat16), DTypeName);

// Returns a block of the kernels that read rulebooks.
ConvBlock BlockToCompare(DType dtype, const Case& c) {
  if (c.rotated_columns > 0) return {.rows = 128, .columns = 128, .split_k = 1};
  for (const ConvBlock& block : cuda::ImplicitGemmBlocks(dtype, c.out_channels)) {
    if (!block.uses_mma_sync && block.split_k == 1) return block;
  }
  ADD_FAILURE() << "there is no block to compare with";
  return {};
}

// Describes the first value that differs.
void ExpectEqual(const Matrix& found, const Matrix& expected) {
  for (size_t i = 0; i < found.values.size(); ++i) {
    const bool are_nan = found.values[i] != found.values[i] && expected.values[i] != expected.values[i];
    if (found.values[i] == expected.values[i] || are_nan) continue;
    const auto place = static_cast<int64_t>(i);
    FAIL() << "row " << place / found.pitch << ", column " << place % found.pitch - found.before << ": "
           << found.values[i] << " in place of " << expected.values[i];
  }
  FAIL() << "only signs of zeros or kinds of NaN differ";
}

// Runs a case with every shape that serves it and with the one that LinearRows chooses, and returns how many runs were
// served.
int Check(const Case& c, DType dtype, Random& random) {
  SCOPED_TRACE(testing::Message() << c << ", from " << NameOf(dtype));
  const int64_t capacity = c.num_rows + c.spare_rows;
  Matrix in(capacity, c.in_channels, c.in_margins, &random, dtype);
  for (int64_t row = c.num_rows; row < capacity; ++row) {
    for (int64_t channel = 0; channel < c.in_channels; ++channel) {
      in.at(row, channel) = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const Matrix residual(c.num_rows, c.out_channels, c.out_margins, &random, dtype);
  const std::vector<float> weights = random.Floats(int64_t{c.in_channels} * c.out_channels, dtype);
  std::vector<float> bias = random.Floats(c.out_channels);
  bias.insert(bias.begin(), static_cast<size_t>(c.bias_begin), std::numeric_limits<float>::quiet_NaN());
  Matrix before = OutBefore(c.num_rows, capacity, c.out_channels, c.out_margins);
  if (c.in_place) std::copy(residual.values.begin(), residual.values.end(), before.values.begin());
  const Matrix angles(capacity, c.head_pairs == 0 ? 0 : AngleTableChannels(c.head_pairs), {}, &random);

  const DeviceMatrix device_in(Device::kCuda, dtype, in), device_residual(Device::kCuda, dtype, residual);
  const DeviceMatrix device_angles(Device::kCuda, DType::kFloat32, angles);
  const DeviceValues device_weights = PackedWeights(1, c.in_channels, c.out_channels, dtype, weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  const DeviceArray<int64_t> num_rows(Device::kCuda, std::vector<int64_t>{c.num_rows});
  const auto params_for = [&](const DeviceMatrix& out) {
    const ConstRows added = c.in_place ? ConstRows(out.View()) : ConstRows(device_residual.View());
    ImplicitGemmParams params{.tiles = {.num_offsets = 1, .num_out = num_rows.data(), .out_capacity = capacity},
                              .operands = {device_in.View(),
                                           out.View(),
                                           device_weights.data(),
                                           {.bias = c.has_bias ? device_bias.data(c.bias_begin) : nullptr,
                                            .residual = c.has_residual ? added : ConstRows{},
                                            .activation = c.activation}}};
    if (c.spare_rows == 0) params.tiles.num_out = nullptr;
    if (c.rotated_columns > 0) params.rotation = {device_angles.View(), c.head_pairs, c.rotated_columns};
    return params;
  };

  const DeviceMatrix expected(Device::kCuda, c.out_dtype, before);
  ImplicitGemmParams general = params_for(expected);
  general.block = BlockToCompare(dtype, c);
  ExpectCudaSuccess(RunImplicitGemm(general));
  int num_served = 0;
  constexpr int kChosen = -1;
  for (int shape = kChosen; shape < cuda::kNumLinearRowsShapes; ++shape) {
    SCOPED_TRACE(testing::Message() << "shape " << shape);
    for (int run = 0; run < 2; ++run) {
      const DeviceMatrix out(Device::kCuda, c.out_dtype, before);
      const ImplicitGemmParams params = params_for(out);
      const cudaError_t status = shape == kChosen ? cuda::LinearRows(params, TestStream())
                                                  : cuda::LinearRowsOfShape(params, shape, TestStream());
      if (status == cudaErrorNotSupported) break;
      ExpectCudaSuccess(status);
      support::Synchronize();
      num_served += run;
      if (out.Bytes() == expected.Bytes()) continue;
      ExpectEqual(out.ToHost(), expected.ToHost());
      return num_served;
    }
  }
  ExpectUntouched(expected.ToHost(), c.num_rows);
  return num_served;
}

TEST_P(LinearRowsTest, EveryNumberOfRows) {
  Random random(91);
  const std::vector<int32_t> in_channels = {8, 16, 32, 36, 64, 96, 100, 128, 144, 192, 252, 256, 384, 504, 512};
  const std::vector<int32_t> out_channels = {1, 8, 32, 36, 64, 96, 128, 144, 192, 252, 256, 384, 576, 756, 768, 2048};
  const std::vector<Activation> activations = {ActivationFunction::kNone, ActivationFunction::kNone,
                                               ActivationFunction::kRelu, ActivationFunction::kGelu,
                                               ActivationFunction::kSilu};
  const std::vector<Margins> out_margins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}, {.after = 5}};
  for (const int64_t num_rows : {1, 63, 64, 65, 127, 128, 129, 700, 5908}) {
    for (int repetition = 0; repetition < (num_rows > 1000 ? 6 : 16); ++repetition) {
      Case c{.num_rows = num_rows,
             .spare_rows = random.OneOf(std::vector<int64_t>{0, 1, 63, 200}),
             .in_channels = random.OneOf(in_channels),
             .out_channels = random.OneOf(out_channels),
             .out_dtype = random.OneOf(OutDTypes(GetParam())),
             .has_bias = random.Chance(0.8),
             .has_residual = random.Chance(0.5),
             .activation = random.OneOf(activations)};
      if (num_rows > 1000) c.out_channels = std::min(c.out_channels, 768);
      c.in_place = c.has_residual && c.out_dtype == GetParam() && random.Chance(0.5);
      c.in_margins = AlignedMargins(c.in_channels, random.Chance(0.5) ? 8 : 0, random.Chance(0.5) ? 8 : 0);
      c.out_margins = repetition % 2 == 0 ? AlignedMargins(c.out_channels, 0, 0) : random.OneOf(out_margins);
      c.bias_begin = random.Chance(0.2) ? 1 : 0;
      EXPECT_GT(Check(c, GetParam(), random), 0) << c;
      if (HasFailure()) return;
    }
  }
}

TEST_P(LinearRowsTest, EveryWidth) {
  Random random(92);
  for (const int32_t in_channels : {1, 7, 32, 33, 64, 65, 96, 128, 160, 256, 320, 512, 1000, 1024}) {
    for (const int32_t out_channels : {1, 31, 32, 33, 64, 96, 100, 128, 160, 192, 200, 256, 300, 512}) {
      const Case c{.num_rows = 150,
                   .spare_rows = 20,
                   .in_channels = in_channels,
                   .out_channels = out_channels,
                   .out_dtype = GetParam(),
                   .has_residual = out_channels % 64 == 0,
                   .in_margins = AlignedMargins(in_channels, 0, 0),
                   .out_margins = AlignedMargins(out_channels, 0, 0)};
      EXPECT_GT(Check(c, GetParam(), random), 0) << c;
      if (HasFailure()) return;
    }
  }
}

TEST_P(LinearRowsTest, LayersOfNetworks) {
  Random random(93);
  for (const auto& [num_rows, in_channels, out_channels] :
       std::vector<std::array<int32_t, 3>>{{30000, 64, 192}, {20000, 36, 144}, {14454, 256, 768}, {5908, 512, 1536}}) {
    const Case c{.num_rows = num_rows,
                 .spare_rows = 1000,
                 .in_channels = in_channels,
                 .out_channels = out_channels,
                 .out_dtype = GetParam(),
                 .in_margins = AlignedMargins(in_channels, 0, 0)};
    EXPECT_GT(Check(c, GetParam(), random), 0) << c;
    if (HasFailure()) return;
  }
}

TEST_P(LinearRowsTest, NoRows) {
  Random random(94);
  const Case c{.num_rows = 0, .spare_rows = 300, .in_channels = 64, .out_channels = 192, .out_dtype = GetParam()};
  EXPECT_GT(Check(c, GetParam(), random), 0);
}

TEST_P(LinearRowsTest, RotatedPairs) {
  Random random(95);
  for (const int64_t num_rows : {1, 64, 129, 3000}) {
    for (const auto& [in_channels, head_pairs, num_heads] :
         std::vector<std::array<int32_t, 3>>{{252, 9, 28}, {504, 9, 56}, {64, 8, 8}, {36, 6, 3}, {128, 3, 11}}) {
      const int32_t rotated = 2 * head_pairs * num_heads;
      const Case c{.num_rows = num_rows,
                   .spare_rows = 70,
                   .in_channels = in_channels,
                   .out_channels = rotated + rotated / 2,
                   .out_dtype = GetParam(),
                   .in_margins = AlignedMargins(in_channels, 0, 0),
                   .out_margins = AlignedMargins(rotated + rotated / 2, 0, 0),
                   .head_pairs = head_pairs,
                   .rotated_columns = rotated};
      EXPECT_GT(Check(c, GetParam(), random), 0) << c;
      if (HasFailure()) return;
    }
  }
}

// Params that only the general kernels serve.
TEST_P(LinearRowsTest, RefusesOthers) {
  const DType dtype = GetParam();
  const DeviceArray<uint16_t> in(Device::kCuda, 64 * 80), out(Device::kCuda, 64 * 64), weights(Device::kCuda, 64 * 64);
  const DeviceArray<int32_t> out_rows(Device::kCuda, 128);
  const ImplicitGemmParams served{.tiles = {.num_offsets = 1, .out_capacity = 64},
                                  .operands = {.in = ConstRows::Packed(in.data(), dtype, 64, 64),
                                               .out = Rows::Packed(out.data(), dtype, 64, 64),
                                               .weights = weights.data()}};
  const auto status_of = [](const ImplicitGemmParams& params) { return cuda::LinearRows(params, TestStream()); };
  EXPECT_EQ(status_of(served), cudaSuccess);
  ImplicitGemmParams params = served;
  params.block = {.rows = 64, .columns = 64, .split_k = 1};
  EXPECT_EQ(status_of(params), cudaErrorNotSupported);
  params = served;
  params.operands.in.pitch = 68;
  EXPECT_EQ(status_of(params), cudaErrorNotSupported);
  params = served;
  params.operands.in.data = in.data() + 4;
  EXPECT_EQ(status_of(params), cudaErrorNotSupported);
  params = served;
  params.tiles.out_rows = out_rows.data();
  EXPECT_EQ(status_of(params), cudaErrorNotSupported);
  params = served;
  params.labels = Rows::Packed(out.data(), DType::kUint8, 64, 1);
  EXPECT_EQ(status_of(params), cudaErrorNotSupported);
  params = served;
  params.operands.in = ConstRows::Packed(in.data(), dtype, 1, 4096);
  EXPECT_EQ(status_of(params), cudaErrorNotSupported) << "the weights would not fit";
  support::Synchronize();
}

}  // namespace
}  // namespace voxserve::kernels::linear_rows_cuda_test
