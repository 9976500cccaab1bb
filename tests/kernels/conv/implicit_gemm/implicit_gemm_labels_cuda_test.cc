// Tests the labels that an implicit GEMM writes in place of its results: they must be the channels of the largest
// results.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/core/floats.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::implicit_gemm_labels_cuda_test {
namespace {

using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

using ImplicitGemmLabelsTest = ImplicitGemmTest;

constexpr uint8_t kUntouchedByte = 0xa5;

struct Case {
  int32_t num_offsets;  // 1: a linear layer
  int64_t num_rows;
  int32_t in_channels;
  int32_t num_classes;
  DType label_dtype;
  bool has_bias;
};

// Returns the labels that the first rows of `results` should get.
std::vector<int32_t> LabelsOf(const Matrix& results, int64_t num_rows, int32_t not_finite_label) {
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < num_rows; ++row) {
    int32_t best = 0;
    bool is_finite = true;
    for (int32_t channel = 0; channel < results.channels; ++channel) {
      is_finite = is_finite && IsFinite(results.at(row, channel));
      if (results.at(row, channel) > results.at(row, best)) best = channel;
    }
    labels.push_back(is_finite ? best : not_finite_label);
  }
  return labels;
}

// Returns the values of an array of labels. The bytes behind them must be untouched.
std::vector<int32_t> ValuesOf(const std::vector<uint8_t>& bytes, DType dtype, int64_t num_rows) {
  std::vector<int32_t> values;
  const auto size = static_cast<size_t>(SizeOf(dtype));
  for (size_t row = 0; row < static_cast<size_t>(num_rows); ++row) {
    values.push_back(bytes[row * size] + (size == 2 ? bytes[row * size + 1] << 8 : 0));
  }
  for (size_t i = static_cast<size_t>(num_rows) * size; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], kUntouchedByte);
  return values;
}

void Check(DType dtype, const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c.num_offsets << " offsets, " << c.num_rows << " rows, " << c.in_channels
                                  << " channels, " << c.num_classes << " classes, " << NameOf(c.label_dtype)
                                  << ", bias " << c.has_bias);
  constexpr int64_t kSpareRows = 70;
  constexpr int32_t kNotFinite = 211;
  const int64_t capacity = c.num_rows + kSpareRows;
  const NeighbourTable table =
      RandomNeighbours(Presence::kRandom, 0.3, c.num_offsets, c.num_rows, c.num_rows, c.num_rows, random);
  Matrix in(capacity, c.in_channels, {}, &random, dtype);
  // Whole numbers give rows with several largest values. Some rows are not finite.
  for (float& value : in.values) value = std::round(2 * value);
  for (int64_t row = 3; row < c.num_rows; row += 11) {
    in.at(row, row % c.in_channels) =
        row % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<float> weights = random.Floats(int64_t{c.num_offsets} * c.in_channels * c.num_classes, dtype);
  for (float& weight : weights) weight = std::round(2 * weight);
  const DeviceMatrix device_in(Device::kCuda, dtype, in);
  const DeviceValues device_weights = PackedWeights(c.num_offsets, c.in_channels, c.num_classes, dtype, weights);
  const DeviceValues bias(Device::kCuda, DType::kFloat32, random.Floats(c.num_classes));
  const DeviceMatrix out(Device::kCuda, DType::kFloat32, OutBefore(c.num_rows, capacity, c.num_classes, {}));
  const DeviceArray<int64_t> num_rows(Device::kCuda, std::vector<int64_t>{c.num_rows});
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), capacity);
  ImplicitGemmParams params{.tiles = tiles.View(),
                            .operands = {device_in.View(), out.View(), device_weights.data(), {}},
                            .not_finite_label = kNotFinite};
  params.operands.epilogue.bias = c.has_bias ? bias.data() : nullptr;
  if (c.num_offsets == 1) params.tiles = {.num_offsets = 1, .num_out = num_rows.data(), .out_capacity = capacity};

  const DeviceArray<uint8_t> labels(
      Device::kCuda, std::vector<uint8_t>(static_cast<size_t>(capacity * SizeOf(c.label_dtype)), kUntouchedByte));
  params.labels = {.data = labels.data(), .dtype = c.label_dtype, .channels = 1, .pitch = 1, .capacity = capacity};
  ExpectCudaSuccess(RunImplicitGemm(params));
  EXPECT_TRUE(std::isnan(out.ToHost().at(0, 0))) << "results were written too";
  params.labels = {};
  ExpectCudaSuccess(RunImplicitGemm(params));
  ASSERT_EQ(ValuesOf(labels.ToHost(), c.label_dtype, c.num_rows), LabelsOf(out.ToHost(), c.num_rows, kNotFinite));
}

TEST_P(ImplicitGemmLabelsTest, AreThoseOfTheResults) {
  Random random(61);
  for (const int32_t num_offsets : {1, 8, 27}) {
    for (const int64_t num_rows : {1, 15, 64, 65, 200, 3000}) {
      for (const int32_t num_classes : {1, 2, 8, 19, 31, kMaxLabelChannels}) {
        Check(GetParam(),
              {.num_offsets = num_offsets,
               .num_rows = num_rows,
               .in_channels = random.OneOf(std::vector<int32_t>{3, 16, 96}),
               .num_classes = num_classes,
               .label_dtype = random.Chance(0.5) ? DType::kUint8 : DType::kUint16,
               .has_bias = random.Chance(0.7)},
              random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ImplicitGemmLabelsTest, WhatHasNoLabelsIsRefused) {
  const DType dtype = GetParam();
  Random random(62);
  constexpr int32_t kChannels = kMaxLabelChannels;
  constexpr int64_t kRows = 64;
  const DeviceMatrix in(Device::kCuda, dtype, Matrix(kRows, kChannels, {}, &random, dtype));
  const DeviceMatrix out(Device::kCuda, DType::kFloat32, Matrix(kRows, kChannels + 1, {}, nullptr));
  const DeviceValues weights = PackedWeights(1, kChannels, kChannels, dtype, random.Floats(kChannels * kChannels));
  const DeviceArray<uint8_t> labels(Device::kCuda, std::vector<uint8_t>(2 * kRows, kUntouchedByte));
  ImplicitGemmParams good{
      .tiles = {.num_offsets = 1, .out_capacity = kRows},
      .operands = {in.View(), out.View(), weights.data(), {}},
      .labels = {.data = labels.data(), .dtype = DType::kUint8, .channels = 1, .pitch = 1, .capacity = kRows}};
  good.operands.out.channels = kChannels;
  const auto expect_refused = [&](const auto& spoil) {
    ImplicitGemmParams params = good;
    spoil(params);
    EXPECT_EQ(cuda::ImplicitGemm(params, TestStream()), cudaErrorInvalidValue);
  };
  expect_refused([&](auto& params) { params.operands.out.channels = kChannels + 1; });
  expect_refused([&](auto& params) { params.operands.epilogue.residual = ConstRows(in.View()); });
  expect_refused([](auto& params) { params.operands.epilogue.activation = ActivationFunction::kRelu; });
  for (const DType wrong : {DType::kFloat16, DType::kBfloat16, DType::kFloat32}) {
    expect_refused([&](auto& params) { params.labels.dtype = wrong; });
  }
  for (const ConvBlock& block : cuda::ImplicitGemmBlocks(dtype, kChannels)) {
    expect_refused([&](auto& params) { params.block = block; });
  }
  support::Synchronize();
  for (const uint8_t label : labels.ToHost()) ASSERT_EQ(label, kUntouchedByte);
  EXPECT_EQ(cuda::ImplicitGemm(good, TestStream()), cudaSuccess);
  support::Synchronize();
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmLabelsTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_labels_cuda_test
