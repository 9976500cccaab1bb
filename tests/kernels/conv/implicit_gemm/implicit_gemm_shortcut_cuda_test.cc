// Tests an implicit GEMM that adds the shortcut of a residual block: the result must be the sum of the convolution and
// of a linear layer on the rows of the shortcut.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "kernels/core/device_code.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::implicit_gemm_shortcut_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

using ImplicitGemmShortcutTest = ImplicitGemmTest;

struct Case {
  const RulebookCase* rulebook;
  int32_t in_channels, shortcut_channels, out_channels;
  DType dtype, out_dtype;
  bool has_bias, has_residual, has_relu;
  Margins in_margins, shortcut_margins;  // keep rows at multiples of 16 bytes
  int64_t spare_rows;
};

bool HasWarpGroups(DType dtype) { return dtype != DType::kFloat32 && cuda::CodeVersion() == cuda::kWarpGroupCode; }

// Runs a case with every block that adds shortcuts, on two orders of the rows. Blocks that split sums alike must give
// the same bytes.
void Check(const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c.rulebook->name << ", " << c.in_channels << " + " << c.shortcut_channels << " to "
                                  << c.out_channels << " channels, " << NameOf(c.out_dtype) << ", bias " << c.has_bias
                                  << ", residual " << c.has_residual << ", ReLU " << c.has_relu << ", spare rows "
                                  << c.spare_rows);
  const RulebookView rulebook = c.rulebook->View();
  const int64_t num_rows = rulebook.num_out_rows, capacity = num_rows + c.spare_rows;
  const NeighbourTable table = Neighbours(rulebook, num_rows);
  Matrix in(rulebook.num_in_rows, c.in_channels, c.in_margins, &random, c.dtype);
  Matrix shortcut(capacity, c.shortcut_channels, c.shortcut_margins, &random, c.dtype);
  const Matrix residual(num_rows, c.out_channels, {}, &random, c.dtype);
  const std::vector<float> weights =
      random.Floats(int64_t{rulebook.num_offsets} * c.in_channels * c.out_channels, c.dtype);
  const std::vector<float> shortcut_weights = random.Floats(int64_t{c.shortcut_channels} * c.out_channels, c.dtype);
  const std::vector<float> bias = random.Floats(c.out_channels);

  Expected expected = NaiveConvolution(rulebook, in, weights, c.out_channels, c.has_bias ? &bias : nullptr,
                                       c.has_residual ? &residual : nullptr, false);
  const Rulebook identity = RandomSubmanifoldRulebook(1, num_rows, 0, random);
  const Expected of_shortcut =
      NaiveConvolution(identity.View(), shortcut, shortcut_weights, c.out_channels, nullptr, nullptr, false);
  Poison(table, in);
  for (int64_t row = num_rows; row < capacity; ++row) {
    for (int32_t channel = 0; channel < c.shortcut_channels; ++channel) {
      shortcut.at(row, channel) = std::numeric_limits<float>::quiet_NaN();
    }
  }

  const DeviceMatrix device_in(Device::kCuda, c.dtype, in), device_shortcut(Device::kCuda, c.dtype, shortcut);
  const DeviceMatrix device_residual(Device::kCuda, c.dtype, residual);
  const DeviceValues device_weights =
      PackedWeights(rulebook.num_offsets, c.in_channels, c.out_channels, c.dtype, weights);
  const DeviceValues device_shortcut_weights =
      PackedWeights(1, c.shortcut_channels, c.out_channels, c.dtype, shortcut_weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  std::vector<int32_t> rows = RowsInTileOrder(table, SortOrder{});
  const DeviceTiles tiles(table, rows, capacity);
  std::shuffle(rows.begin(), rows.end(), random.engine());
  const DeviceTiles shuffled_tiles(table, rows, capacity);

  std::map<int32_t, std::vector<uint8_t>> bytes_of;  // by split_k
  for (const ConvBlock& block : AllBlocks(c.dtype, c.out_channels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    for (const DeviceTiles* of_run : {&tiles, &shuffled_tiles}) {
      const DeviceMatrix out(Device::kCuda, c.out_dtype, OutBefore(num_rows, capacity, c.out_channels, {}));
      const ImplicitGemmParams params{
          .tiles = of_run->View(),
          .operands = {.in = device_in.View(),
                       .out = out.View(),
                       .weights = device_weights.data(),
                       .epilogue = {.bias = c.has_bias ? device_bias.data() : nullptr,
                                    .residual = c.has_residual ? ConstRows(device_residual.View()) : ConstRows{},
                                    .activation = c.has_relu ? ActivationFunction::kRelu : ActivationFunction::kNone},
                       .shortcut_in = device_shortcut.View(),
                       .shortcut_weights = device_shortcut_weights.data()},
          .block = block};
      ASSERT_EQ(cuda::ImplicitGemmAddsShortcut(params), !block.uses_mma_sync);
      if (block.uses_mma_sync) {
        EXPECT_EQ(RunImplicitGemm(params), cudaErrorInvalidValue);
        continue;
      }
      ExpectCudaSuccess(RunImplicitGemm(params));
      const Matrix result = out.ToHost();
      for (size_t i = 0; i < expected.values.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / c.out_channels,
                      channel = static_cast<int64_t>(i) % c.out_channels;
        const double sum = expected.values[i] + of_shortcut.values[i];
        const double magnitude = expected.magnitudes[i] + of_shortcut.magnitudes[i];
        ASSERT_NEAR(result.at(row, channel), c.has_relu ? std::max(sum, 0.0) : sum, GemmTolerance(c.dtype, magnitude))
            << "row " << row << " channel " << channel;
      }
      ExpectUntouched(result, num_rows);
      const std::vector<int32_t> counters = of_run->Counters();
      ASSERT_EQ(std::count(counters.begin(), counters.end(), 0), static_cast<ptrdiff_t>(counters.size()));
      const int32_t split_k = std::max(block.split_k, 1);  // the default block does not split
      ASSERT_EQ(out.Bytes(), bytes_of.try_emplace(split_k, out.Bytes()).first->second) << "a row depends on its tile";
    }
  }
}

TEST_P(ImplicitGemmShortcutTest, IsAddedToTheConvolution) {
  if (!HasWarpGroups(GetParam())) GTEST_SKIP() << "no kernel of warp groups";
  Random random(71);
  const std::vector<Margins> aligned = {{}, {.before = 8, .after = 16}, {.after = 8}};
  for (const RulebookCase& rulebook : RulebookCases(random)) {
    if (rulebook.View().num_out_rows == 0) continue;
    for (int repetition = 0; repetition < 12; ++repetition) {
      Check({.rulebook = &rulebook,
             .in_channels = random.OneOf(std::vector<int32_t>{8, 16, 24, 32, 40, 64, 96, 128}),
             .shortcut_channels = random.OneOf(std::vector<int32_t>{8, 16, 32, 56, 64, 96, 128, 192, 384}),
             .out_channels = random.OneOf(std::vector<int32_t>{1, 8, 32, 33, 64, 96, 128, 144, 192, 256}),
             .dtype = GetParam(),
             .out_dtype = random.OneOf(OutDTypes(GetParam())),
             .has_bias = random.Chance(0.7),
             .has_residual = random.Chance(0.3),
             .has_relu = random.Chance(0.5),
             .in_margins = random.OneOf(aligned),
             .shortcut_margins = random.OneOf(aligned),
             .spare_rows = random.OneOf(std::vector<int64_t>{0, 7, 400})},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

// The numbers of rows end within, at and behind the ends of tiles; the largest gives every multiprocessor several
// tiles.
TEST_P(ImplicitGemmShortcutTest, RowsAroundATile) {
  if (!HasWarpGroups(GetParam())) GTEST_SKIP() << "no kernel of warp groups";
  Random random(72);
  for (const int64_t num_rows : {1, 63, 64, 65, 127, 128, 129, 5 * 64 * cuda::NumSms()}) {
    const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(9, num_rows, 0.2, random)};
    Check({.rulebook = &rulebook,
           .in_channels = 16,
           .shortcut_channels = 40,
           .out_channels = 48,
           .dtype = GetParam(),
           .out_dtype = GetParam(),
           .has_bias = true,
           .has_residual = false,
           .has_relu = true,
           .in_margins = {},
           .shortcut_margins = {},
           .spare_rows = 1},
          random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ImplicitGemmShortcutTest, WhatItCannotAddIsRefused) {
  const DType dtype = GetParam();
  Random random(73);
  constexpr int32_t kChannels = 32, kOffsets = 5;
  constexpr int64_t kRows = 64;
  const NeighbourTable table = RandomNeighbours(Presence::kRandom, 0.3, kOffsets, kRows, kRows, kRows, random);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceMatrix in(Device::kCuda, dtype, Matrix(kRows, kChannels, {.after = 8}, &random, dtype));
  const DeviceMatrix out(Device::kCuda, dtype, OutBefore(kRows, kRows, kChannels, {}));
  const DeviceValues weights =
      PackedWeights(kOffsets, kChannels, kChannels, dtype, random.Floats(kOffsets * kChannels * kChannels));
  const ImplicitGemmParams good{.tiles = tiles.View(),
                                .operands = {.in = in.View(),
                                             .out = out.View(),
                                             .weights = weights.data(),
                                             .shortcut_in = in.View(),
                                             .shortcut_weights = weights.data()}};
  const auto expect_refused = [&](const auto& spoil) {
    ImplicitGemmParams params = good;
    spoil(params);
    EXPECT_FALSE(cuda::ImplicitGemmAddsShortcut(params));
    EXPECT_EQ(cuda::ImplicitGemm(params, TestStream()), cudaErrorInvalidValue);
  };
  const auto move = [&](ConstRows& rows) { rows.data = static_cast<const char*>(rows.data) + SizeOf(dtype); };
  expect_refused([&](auto& params) { move(params.operands.shortcut_in); });
  expect_refused([&](auto& params) { move(params.operands.in); });
  expect_refused([](auto& params) { --params.operands.shortcut_in.pitch; });
  expect_refused([](auto& params) { --params.operands.shortcut_in.channels; });
  expect_refused([](auto& params) { --params.operands.in.channels; });
  expect_refused([&](auto& params) {
    params.operands.shortcut_in.dtype = dtype == DType::kFloat16 ? DType::kBfloat16 : DType::kFloat16;
  });
  expect_refused([](auto& params) {
    params.tiles.num_offsets = 1;
    params.tiles.out_rows = params.tiles.in_rows = nullptr;
    params.tiles.masks = nullptr;
  });
  support::Synchronize();
  ExpectUntouched(out.ToHost(), kRows);
  EXPECT_EQ(cuda::ImplicitGemmAddsShortcut(good), HasWarpGroups(dtype));
  EXPECT_EQ(cuda::ImplicitGemm(good, TestStream()), HasWarpGroups(dtype) ? cudaSuccess : cudaErrorInvalidValue);
  support::Synchronize();
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmShortcutTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_shortcut_cuda_test
