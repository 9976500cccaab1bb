// Compares the implicit GEMM, with every block, with naive loops in double. The host makes the tiles here;
// implicit_gemm_fuzz_cuda_test.cc uses the tiles that the GPU makes.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <ostream>
#include <utility>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/core/device_code.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::implicit_gemm_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

struct Case {
  const RulebookCase* rulebook;
  int32_t in_channels, out_channels;
  DType dtype, out_dtype;
  bool has_bias = true, has_residual = false;
  Activation activation = ActivationFunction::kNone;
  bool in_place = false;  // the output is also the residual
  Margins in_margins = {}, out_margins = {}, residual_margins = {};
  int64_t bias_begin = 0;  // number of floats before the bias, which changes its alignment
  // The capacity exceeds the number of rows by this number. If it is above 0, the kernel reads the number of rows from
  // device memory.
  int64_t spare_rows = 0;
  bool is_linear = false;  // passes no tables; the rulebook is the identity
};

std::ostream& operator<<(std::ostream& os, const Case& c) {
  return os << c.rulebook->name << (c.is_linear ? " as a linear layer" : "") << ", " << c.in_channels << " to "
            << c.out_channels << " channels, " << NameOf(c.dtype) << " to " << NameOf(c.out_dtype) << ", bias "
            << c.has_bias << " from " << c.bias_begin << ", residual " << c.has_residual << ", activation "
            << static_cast<int>(c.activation.function) << ", in place " << c.in_place << ", margins "
            << c.in_margins.before << "+" << c.in_margins.after << " " << c.out_margins.before << "+"
            << c.out_margins.after << " " << c.residual_margins.before << "+" << c.residual_margins.after
            << ", spare rows " << c.spare_rows;
}

// Chooses at random how results are stored: dtypes, bias, residual, and margins that keep or break an alignment of 16
// bytes.
void ChooseStores(Case& c, Random& random) {
  const std::vector<Margins> margins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}, {.after = 5}};
  c.in_margins = random.OneOf(margins);
  c.out_margins = random.OneOf(margins);
  c.residual_margins = random.OneOf(margins);
  c.out_dtype = random.OneOf(OutDTypes(c.dtype));
  c.has_bias = random.Chance(0.7);
  c.has_residual = random.Chance(0.5);
  c.in_place = c.has_residual && c.out_dtype == c.dtype && random.Chance(0.5);
  c.activation = random.OneOf(std::vector<Activation>{ActivationFunction::kNone,
                                                      ActivationFunction::kRelu,
                                                      ActivationFunction::kRelu,
                                                      {ActivationFunction::kLeakyRelu, 0.1f},
                                                      ActivationFunction::kSigmoid,
                                                      ActivationFunction::kGelu,
                                                      ActivationFunction::kSilu,
                                                      ActivationFunction::kTanh});
  c.bias_begin = random.Chance(0.2) ? 1 : 0;
  c.spare_rows = random.OneOf(std::vector<int64_t>{0, 7, 400});
}

void ExpectResult(const Matrix& out, const Expected& sums, const Case& c) {
  for (size_t i = 0; i < sums.values.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / out.channels, channel = static_cast<int64_t>(i) % out.channels;
    double value = sums.values[i], magnitude = sums.magnitudes[i];
    if (c.activation.function != ActivationFunction::kNone) {
      value = Activate(c.activation, static_cast<float>(value));
      magnitude = 1.2 * magnitude + std::abs(value);  // no slope is above 1.2
    }
    ASSERT_NEAR(out.at(row, channel), value, GemmTolerance(c.dtype, magnitude))
        << "row " << row << " channel " << channel;
  }
  ExpectUntouched(out, static_cast<int64_t>(sums.values.size()) / out.channels);
}

// Runs a case twice with every block. Blocks that split sums alike and use the same instructions must give the same
// bytes. The default block must give the bytes of one of them.
void Check(const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c);
  const RulebookView rulebook = c.rulebook->View();
  const int64_t num_rows = rulebook.num_out_rows, capacity = num_rows + c.spare_rows;
  const NeighbourTable table = Neighbours(rulebook, num_rows);
  Matrix in(rulebook.num_in_rows, c.in_channels, c.in_margins, &random, c.dtype);
  const Margins& residual_margins = c.in_place ? c.out_margins : c.residual_margins;
  Matrix residual(num_rows, c.out_channels, residual_margins, &random, c.dtype);
  const std::vector<float> weights =
      random.Floats(int64_t{rulebook.num_offsets} * c.in_channels * c.out_channels, c.dtype);
  std::vector<float> bias = random.Floats(c.out_channels);
  const Expected expected = NaiveConvolution(rulebook, in, weights, c.out_channels, c.has_bias ? &bias : nullptr,
                                             c.has_residual ? &residual : nullptr, false);
  Poison(table, in);
  Matrix before = OutBefore(num_rows, capacity, c.out_channels, c.out_margins);
  if (c.in_place) std::copy(residual.values.begin(), residual.values.end(), before.values.begin());
  bias.insert(bias.begin(), static_cast<size_t>(c.bias_begin), std::numeric_limits<float>::quiet_NaN());

  const DeviceMatrix device_in(Device::kCuda, c.dtype, in), device_residual(Device::kCuda, c.dtype, residual);
  const DeviceValues device_weights =
      PackedWeights(rulebook.num_offsets, c.in_channels, c.out_channels, c.dtype, weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  std::vector<int32_t> rows = RowsInTileOrder(table, SortOrder{});
  const DeviceTiles device_tiles(table, rows, capacity);
  std::shuffle(rows.begin(), rows.end(), random.engine());
  const DeviceTiles shuffled_tiles(table, rows, capacity);
  TilesView tiles = device_tiles.View();
  const TilesView other_tiles = shuffled_tiles.View();
  if (c.is_linear) {
    tiles.out_rows = tiles.in_rows = nullptr;
    tiles.masks = nullptr;
  }

  std::map<std::pair<int32_t, bool>, std::vector<uint8_t>> bytes_of;
  for (const ConvBlock& block : AllBlocks(c.dtype, c.out_channels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    std::vector<uint8_t> first_bytes;
    for (int run = 0; run < 2; ++run) {
      const DeviceMatrix out(Device::kCuda, c.out_dtype, before);
      const ConstRows added = c.in_place ? ConstRows(out.View()) : ConstRows(device_residual.View());
      ExpectCudaSuccess(RunImplicitGemm({.tiles = run == 0 ? tiles : other_tiles,
                                         .operands = {device_in.View(),
                                                      out.View(),
                                                      device_weights.data(),
                                                      {.bias = c.has_bias ? device_bias.data(c.bias_begin) : nullptr,
                                                       .residual = c.has_residual ? added : ConstRows{},
                                                       .activation = c.activation}},
                                         .block = block}));
      const std::vector<int32_t> counters = (run == 0 ? device_tiles : shuffled_tiles).Counters();
      ASSERT_EQ(std::count(counters.begin(), counters.end(), 0), static_cast<ptrdiff_t>(counters.size()));
      if (run == 0) {
        ExpectResult(out.ToHost(), expected, c);
        if (testing::Test::HasFatalFailure()) return;
        first_bytes = out.Bytes();
      } else {
        ASSERT_EQ(out.Bytes(), first_bytes) << "a row depends on its tile or on the run";
      }
    }
    if (block.rows == 0) {
      const auto is_it = [&](const auto& of) { return of.second == first_bytes; };
      EXPECT_TRUE(std::any_of(bytes_of.begin(), bytes_of.end(), is_it))
          << "the default sums like none of the blocks offered";
    } else {
      const auto of = bytes_of.try_emplace({block.split_k, block.uses_mma_sync}, first_bytes).first;
      ASSERT_EQ(first_bytes, of->second) << "blocks differ that split sums alike";
    }
  }
}

TEST_P(ImplicitGemmTest, BlocksOfferedAreDistinct) {
  for (const int32_t channels : {1, 32, 33, 96, 128, 144, 192, 300, 1000}) {
    const std::vector<ConvBlock> blocks = cuda::ImplicitGemmBlocks(GetParam(), channels);
    ASSERT_FALSE(blocks.empty());
    for (size_t i = 0; i < blocks.size(); ++i) {
      SCOPED_TRACE(testing::PrintToString(blocks[i]));
      ASSERT_GT(blocks[i].rows, 0);
      EXPECT_EQ(blocks[i].rows % kMaskTileRows, 0);
      EXPECT_EQ(kMaxBlockTileRows % blocks[i].rows, 0);
      EXPECT_GT(blocks[i].columns, 0);
      EXPECT_GT(blocks[i].split_k, 0);
      EXPECT_EQ(std::count(blocks.begin(), blocks.end(), blocks[i]), 1);
    }
  }
  EXPECT_TRUE(cuda::ImplicitGemmBlocks(DType::kUint8, 16).empty());
}

TEST_P(ImplicitGemmTest, EveryKindOfRulebook) {
  Random random(51);
  const std::vector<std::pair<int32_t, int32_t>> channels = {
      {1, 1},   {3, 8},    {4, 32},   {8, 12},   {12, 3},  {16, 32},  {32, 96},   {80, 16},  {64, 64},   {33, 40},
      {96, 96}, {24, 128}, {128, 24}, {16, 160}, {20, 48}, {100, 44}, {128, 128}, {36, 256}, {144, 144}, {40, 192}};
  for (const RulebookCase& rulebook : RulebookCases(random)) {
    for (int repetition = 0; repetition < 8; ++repetition) {
      const auto [in_channels, out_channels] = random.OneOf(channels);
      Case c{.rulebook = &rulebook, .in_channels = in_channels, .out_channels = out_channels, .dtype = GetParam()};
      ChooseStores(c, random);
      Check(c, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ImplicitGemmTest, EveryWidthOfRows) {
  Random random(52);
  const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(27, 70, 0.4, random)};
  for (const int32_t in_channels : {1, 3, 4, 8, 12, 16, 20, 32, 36, 64, 96, 100, 128, 256}) {
    for (const int32_t out_channels : {1, 3, 16, 20, 32, 48, 64, 96, 128, 144, 192, 256, 300}) {
      // Every second case has no margins, like most layers of networks.
      Case c{.rulebook = &rulebook,
             .in_channels = in_channels,
             .out_channels = out_channels,
             .dtype = GetParam(),
             .out_dtype = GetParam(),
             .activation = ActivationFunction::kRelu};
      if (random.Chance(0.5)) ChooseStores(c, random);
      Check(c, random);
      if (HasFatalFailure()) return;
    }
  }
}

// Shifts the rows of the matrices to every offset from a multiple of 16 bytes that the dtype allows.
TEST_P(ImplicitGemmTest, EveryAlignment) {
  Random random(53);
  const RulebookCase rulebook{"strided", RandomRulebook(8, 150, 100, 0.5, random)};
  for (int64_t before = 0; before < 16 / SizeOf(GetParam()); ++before) {
    for (const int64_t after : {int64_t{0}, 16 - before, int64_t{3}}) {
      for (const bool of_input : {true, false}) {
        const Margins margins{.before = before, .after = after};
        Check({.rulebook = &rulebook,
               .in_channels = 40,
               .out_channels = 72,
               .dtype = GetParam(),
               .out_dtype = GetParam(),
               .has_residual = true,
               .in_place = before % 2 == 1,
               .in_margins = of_input ? margins : Margins{},
               .out_margins = of_input ? Margins{} : margins,
               .residual_margins = of_input ? Margins{.after = 8} : margins},
              random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ImplicitGemmTest, RowsAroundATile) {
  Random random(54);
  for (const int64_t num_rows : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 511, 513}) {
    const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(5, num_rows, 0.5, random)};
    for (const int64_t spare_rows : {0, 1, 300}) {
      Check({.rulebook = &rulebook,
             .in_channels = 32,
             .out_channels = 48,
             .dtype = GetParam(),
             .out_dtype = GetParam(),
             .spare_rows = spare_rows},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

// Queries and keys that a rotary reads stay float32: a warp stores them 16 bytes at a time if their channels are a
// multiple of 8. The last tile of columns may be only partly there.
TEST_P(ImplicitGemmTest, Float32ResultsOfLinearLayers) {
  Random random(57);
  const RulebookCase rulebook{"identity", RandomSubmanifoldRulebook(1, 300, 0, random)};
  for (const int32_t out_channels : {8, 40, 72, 76, 128, 144, 180, 288, 504}) {
    for (const bool has_bias : {false, true}) {
      for (const ActivationFunction function : {ActivationFunction::kNone, ActivationFunction::kRelu}) {
        for (const Margins& margins : {Margins{}, Margins{.before = 8, .after = 8}, Margins{.before = 1, .after = 2}}) {
          Check({.rulebook = &rulebook,
                 .in_channels = 36,
                 .out_channels = out_channels,
                 .dtype = GetParam(),
                 .out_dtype = DType::kFloat32,
                 .has_bias = has_bias,
                 .activation = function,
                 .out_margins = margins,
                 .spare_rows = 7,
                 .is_linear = true},
                random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ImplicitGemmTest, IdentityIsALinearLayer) {
  Random random(55);
  for (const int64_t num_rows : {1, 63, 64, 200, 2000}) {
    const RulebookCase rulebook{"identity", RandomSubmanifoldRulebook(1, num_rows, 0, random)};
    for (const auto& [in_channels, out_channels] : std::vector<std::pair<int32_t, int32_t>>{
             {1, 3}, {4, 16}, {16, 300}, {36, 64}, {96, 96}, {256, 128}, {144, 144}, {64, 576}}) {
      Case c{.rulebook = &rulebook, .in_channels = in_channels, .out_channels = out_channels, .dtype = GetParam()};
      ChooseStores(c, random);
      c.is_linear = true;
      for (const int64_t spare_rows : {0, 70}) {
        c.spare_rows = spare_rows;
        Check(c, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Each row occurs twice in one batch, and in another one so often that the kernels for many tiles run (Tiles in
// warp_group_ring.cuh). It must give the same bytes there and in a batch of its own.
TEST_P(ImplicitGemmTest, RowsDoNotDependOnTheirBatch) {
  const DType dtype = GetParam();
  Random random(56);
  for (const auto& [num_offsets, in_channels, out_channels] :
       {std::array{27, 64, 96}, std::array{8, 16, 40}, std::array{27, 4, 32}, std::array{1, 128, 256},
        std::array{27, 36, 144}}) {
    SCOPED_TRACE(testing::Message() << num_offsets << " offsets, " << in_channels << " to " << out_channels);
    constexpr int64_t kIn = 700, kOut = 430;
    const int64_t many = int64_t{4} * cuda::NumSms() * kMaskTileRows / kOut;
    const NeighbourTable once = RandomNeighbours(Presence::kRandom, 0.2, num_offsets, kOut, kIn, kOut, random);
    const Matrix in_once(kIn, in_channels, {}, &random, dtype);
    const DeviceValues weights = PackedWeights(num_offsets, in_channels, out_channels, dtype,
                                               random.Floats(int64_t{num_offsets} * in_channels * out_channels, dtype));
    // The bytes of all rows, each of which occurs `times` times.
    const auto bytes = [&](int64_t times, const ConvBlock& block) {
      NeighbourTable table(num_offsets, times * kOut, times * kOut);
      Matrix in(times * kIn, in_channels, {}, nullptr);
      for (int64_t time = 0; time < times; ++time) {
        for (int32_t k = 0; k < num_offsets; ++k) {
          for (int64_t row = 0; row < kOut; ++row) {
            const int32_t in_row = once.at(k, row);
            table.at(k, time * kOut + row) = in_row < 0 ? -1 : in_row + static_cast<int32_t>(time * kIn);
          }
        }
        std::copy(in_once.values.begin(), in_once.values.end(),
                  in.values.begin() + time * static_cast<int64_t>(in_once.values.size()));
      }
      const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), table.num_rows);
      const DeviceMatrix device_in(Device::kCuda, dtype, in);
      const DeviceMatrix out(Device::kCuda, dtype, OutBefore(table.num_rows, table.num_rows, out_channels, {}));
      ExpectCudaSuccess(RunImplicitGemm(
          {.tiles = tiles.View(), .operands = {device_in.View(), out.View(), weights.data(), {}}, .block = block}));
      return out.Bytes();
    };
    for (const ConvBlock& block : AllBlocks(dtype, out_channels)) {
      SCOPED_TRACE(testing::PrintToString(block));
      const std::vector<uint8_t> alone = bytes(1, block);
      for (const int64_t times : {int64_t{2}, many}) {
        const std::vector<uint8_t> batch = bytes(times, block);
        ASSERT_EQ(batch.size(), times * alone.size());
        for (auto at = batch.begin(); at != batch.end(); at += static_cast<int64_t>(alone.size())) {
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), at)) << times << " times";
        }
      }
    }
  }
}

// If the number of rows in device memory exceeds the capacity, the kernel must use the capacity.
TEST_P(ImplicitGemmTest, CountBeyondTheCapacity) {
  const DType dtype = GetParam();
  Random random(58);
  constexpr int32_t kOffsets = 27, kIn = 64, kOut = 128;
  constexpr int64_t kRows = 200, kRowsBehind = 200;
  const NeighbourTable table = RandomNeighbours(Presence::kRandom, 0.3, kOffsets, kRows, kRows, kRows, random);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceMatrix in(Device::kCuda, dtype, Matrix(kRows + kRowsBehind, kIn, {}, &random, dtype));
  for (const bool is_linear : {false, true}) {
    TilesView view = tiles.View();
    ASSERT_EQ(view.num_out, nullptr);
    if (is_linear) {
      view.num_offsets = 1;
      view.out_rows = view.in_rows = nullptr;
      view.masks = nullptr;
    }
    const DeviceValues weights =
        PackedWeights(view.num_offsets, kIn, kOut, dtype, random.Floats(int64_t{view.num_offsets} * kIn * kOut, dtype));
    for (const ConvBlock& block : AllBlocks(dtype, kOut)) {
      SCOPED_TRACE(testing::Message() << (is_linear ? "linear, " : "") << testing::PrintToString(block));
      const auto bytes = [&](const int64_t* num_out) {
        const DeviceMatrix out(Device::kCuda, dtype, OutBefore(kRows, kRows + kRowsBehind, kOut, {}));
        view.num_out = num_out;
        ExpectCudaSuccess(
            RunImplicitGemm({.tiles = view, .operands = {in.View(), out.View(), weights.data(), {}}, .block = block}));
        ExpectUntouched(out.ToHost(), kRows);
        return out.Bytes();
      };
      const std::vector<uint8_t> expected = bytes(nullptr);
      for (const int64_t count : {kRows + 1, kRows + 150, int64_t{1} << 40}) {
        const DeviceArray<int64_t> num_out(Device::kCuda, std::vector<int64_t>{count});
        ASSERT_EQ(bytes(num_out.data()), expected) << count << " rows";
      }
    }
  }
}

// On compute capability 9 the build must contain the code for sm_90a, which has blocks of warp groups. A build without
// it would be slow there.
TEST_P(ImplicitGemmTest, WarpGroupsAreOfferedWhereTheCodeHasThem) {
  int device = 0, major = 0;
  ExpectCudaSuccess(cudaGetDevice(&device));
  ExpectCudaSuccess(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  EXPECT_EQ(cuda::CodeVersion() == cuda::kWarpGroupCode, major == 9) << "code for " << cuda::CodeVersion();
  const bool has_warp_groups = GetParam() != DType::kFloat32 && cuda::CodeVersion() == cuda::kWarpGroupCode;
  for (const int32_t channels : {1, 32, 96, 300}) {
    const std::vector<ConvBlock> blocks = cuda::ImplicitGemmBlocks(GetParam(), channels);
    const auto is_by_groups = [](const ConvBlock& block) { return !block.uses_mma_sync; };
    EXPECT_EQ(std::any_of(blocks.begin(), blocks.end(), is_by_groups), has_warp_groups) << channels << " channels";
    EXPECT_FALSE(std::all_of(blocks.begin(), blocks.end(), is_by_groups)) << channels << " channels";
  }
}

// Blocks of 160 or 192 columns are offered for channels of which other wide blocks leave many columns empty.
TEST_P(ImplicitGemmTest, WideBlocksAreOfferedWhereTheyFit) {
  const bool has_warp_groups = GetParam() != DType::kFloat32 && cuda::CodeVersion() == cuda::kWarpGroupCode;
  const auto offers = [](const std::vector<ConvBlock>& blocks, int32_t columns) {
    return std::any_of(blocks.begin(), blocks.end(), [&](const ConvBlock& block) { return block.columns == columns; });
  };
  const std::map<int32_t, int32_t> columns_for = {
      // 0: neither is offered
      {1, 0},   {96, 0},  {128, 0},   {129, 160}, {144, 160}, {160, 160}, {161, 192}, {192, 192},
      {193, 0}, {256, 0}, {288, 160}, {320, 160}, {384, 192}, {504, 0},   {576, 192}, {768, 0}};
  for (const auto& [channels, columns] : columns_for) {
    SCOPED_TRACE(testing::Message() << channels << " channels");
    for (const int32_t wide : {160, 192}) {
      EXPECT_EQ(offers(cuda::ImplicitGemmBlocks(GetParam(), channels), wide), has_warp_groups && wide == columns);
      EXPECT_FALSE(offers(cuda::Int8ImplicitGemmBlocks(channels), wide));
    }
  }
}

TEST_P(ImplicitGemmTest, WhatItDoesNotServeIsRefused) {
  const DType dtype = GetParam();
  Random random(57);
  constexpr int32_t kChannels = 32;
  constexpr int64_t kRows = 64;
  const DeviceMatrix in(Device::kCuda, dtype, Matrix(kRows, kChannels, {}, &random, dtype));
  const DeviceMatrix out(Device::kCuda, dtype, Matrix(kRows, kChannels, {}, nullptr));
  const DeviceValues weights = PackedWeights(1, kChannels, kChannels, dtype, random.Floats(kChannels * kChannels));
  const ImplicitGemmParams good{.tiles = {.num_offsets = 1, .out_capacity = kRows},
                                .operands = {in.View(), out.View(), weights.data(), {}}};
  const auto expect_refused = [&](const auto& spoil) {
    ImplicitGemmParams params = good;
    spoil(params);
    EXPECT_EQ(cuda::ImplicitGemm(params, TestStream()), cudaErrorInvalidValue);
  };
  for (const ConvBlock& offered : cuda::ImplicitGemmBlocks(dtype, kChannels)) {
    SCOPED_TRACE(testing::PrintToString(offered));
    expect_refused([&](auto& params) { (params.block = offered).rows += 1; });
    expect_refused([&](auto& params) { (params.block = offered).rows = -offered.rows; });
    expect_refused([&](auto& params) { (params.block = offered).columns = 0; });
    expect_refused([&](auto& params) { (params.block = offered).columns += 1; });
    expect_refused([&](auto& params) { (params.block = offered).split_k = 0; });
    expect_refused([&](auto& params) { (params.block = offered).split_k = 1000; });
  }
  for (const DType other : {DType::kUint8, DType::kUint16, DType::kFloat16, DType::kBfloat16, DType::kFloat32}) {
    if (other == dtype) continue;
    SCOPED_TRACE(NameOf(other));
    const bool has_features = other != DType::kUint8 && other != DType::kUint16;
    if (!has_features || dtype != DType::kFloat32) {  // 16-bit results may be stored as float32
      expect_refused([&](auto& params) { params.operands.in.dtype = other; });
    }
    if (!has_features) {
      expect_refused([&](auto& params) { params.operands.in.dtype = params.operands.out.dtype = other; });
    }
    if (other != DType::kFloat32) expect_refused([&](auto& params) { params.operands.out.dtype = other; });
    expect_refused([&](auto& params) {
      params.operands.epilogue.residual = ConstRows(in.View());
      params.operands.epilogue.residual.dtype = other;
    });
  }
  // Blocks that split sums need counters and a workspace; without them they are refused.
  for (const ConvBlock& offered : cuda::ImplicitGemmBlocks(dtype, 128)) {
    if (offered.split_k == 1) continue;
    SCOPED_TRACE(testing::PrintToString(offered));
    expect_refused([&](auto& params) { params.block = offered; });
    expect_refused([&](auto& params) {
      params.block = offered;
      params.tiles.counters = static_cast<int32_t*>(out.data());
      params.workspace = out.data();
      params.operands.out.channels = kMaxSplitColumnTiles * offered.columns + 1;
    });
  }
  expect_refused([](auto& params) { params.tiles.num_offsets = 1 << 16; });
  expect_refused([](auto& params) { params.operands.in.channels = 1 << 16; });
  // Weights of 32 GiB are refused.
  expect_refused([](auto& params) {
    params.tiles.num_offsets = 1 << 14;
    params.operands.in.channels = 1 << 14;
    params.operands.out.channels = 1 << 7;
  });
  // Rows and pitches in bytes must fit 32 bits.
  expect_refused([](auto& params) { params.tiles.out_capacity = std::numeric_limits<int32_t>::max(); });
  expect_refused([](auto& params) { params.operands.in.pitch = int64_t{1} << 30; });
  ExpectUntouched(out.ToHost(), 0);
  // The same params without a fault are accepted, so each refusal above has its own reason.
  EXPECT_EQ(cuda::ImplicitGemm(good, TestStream()), cudaSuccess);
  support::Synchronize();
}

// If there are no rows, nothing may be launched: the captured graph must have no node.
TEST_P(ImplicitGemmTest, NothingIsLaunchedForNoRows) {
  for (const ConvBlock& block : AllBlocks(GetParam(), 8)) {
    ExpectCudaSuccess(cudaStreamBeginCapture(TestStream(), cudaStreamCaptureModeThreadLocal));
    const cudaError_t status = cuda::ImplicitGemm(
        {.tiles = {.num_offsets = 27},
         .operands = {.in = {.dtype = GetParam(), .channels = 8}, .out = {.dtype = GetParam(), .channels = 8}},
         .block = block},
        TestStream());
    cudaGraph_t graph = nullptr;
    ExpectCudaSuccess(cudaStreamEndCapture(TestStream(), &graph));
    size_t num_nodes = 0;
    ExpectCudaSuccess(cudaGraphGetNodes(graph, nullptr, &num_nodes));
    ExpectCudaSuccess(cudaGraphDestroy(graph));
    EXPECT_EQ(status, cudaSuccess);
    EXPECT_EQ(num_nodes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_cuda_test
