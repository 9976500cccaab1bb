// The GPU's fetch-on-demand against naive loops in double, and the neighbours that it reads turned round.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/conv/swap_neighbours.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr int32_t kRubbishRow = 0x7f7f7f7f;  // in table entries beyond the rows, which nobody may read

// [K, rows + extra] the row at the other end of each row's pair, -1 without.
std::vector<int32_t> Neighbours(const RulebookView& rulebook, int64_t pitch) {
  std::vector<int32_t> neighbours(static_cast<size_t>(rulebook.num_offsets * pitch), kRubbishRow);
  for (int64_t k = 0; k < rulebook.num_offsets; ++k) {
    const auto of_offset = neighbours.begin() + k * pitch;
    std::fill(of_offset, of_offset + rulebook.num_out_rows, -1);
    for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
      of_offset[rulebook.out_rows[p]] = rulebook.in_rows[p];
    }
  }
  return neighbours;
}

// A submanifold convolution's: random pairs, the identity at the centre.
Rulebook RandomSubmanifoldRulebook(int32_t num_offsets, int64_t num_rows, double density, Random& random) {
  const Rulebook pairs = RandomRulebook(num_offsets, num_rows, num_rows, density, random);
  Rulebook rulebook{.num_out_rows = num_rows, .num_in_rows = num_rows, .offset_begin = {0}};
  for (int32_t k = 0; k < num_offsets; ++k) {
    if (k == num_offsets / 2) {
      for (int32_t row = 0; row < num_rows; ++row) {
        rulebook.in_rows.push_back(row);
        rulebook.out_rows.push_back(row);
      }
    } else {
      const auto begin = pairs.offset_begin[static_cast<size_t>(k)];
      const auto end = pairs.offset_begin[static_cast<size_t>(k) + 1];
      rulebook.in_rows.insert(rulebook.in_rows.end(), pairs.in_rows.begin() + begin, pairs.in_rows.begin() + end);
      rulebook.out_rows.insert(rulebook.out_rows.end(), pairs.out_rows.begin() + begin, pairs.out_rows.begin() + end);
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

// Every output row has a pair in every offset: the input rows turned by the offset's number.
Rulebook DenseRulebook(int32_t num_offsets, int64_t num_rows) {
  Rulebook rulebook{.num_out_rows = num_rows, .num_in_rows = num_rows, .offset_begin = {0}};
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int64_t row = 0; row < num_rows; ++row) {
      rulebook.in_rows.push_back(static_cast<int32_t>((row + k) % num_rows));
      rulebook.out_rows.push_back(static_cast<int32_t>(row));
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

struct RulebookCase {
  std::string name;
  Rulebook rulebook;
  bool is_symmetric = false;
  bool is_inverse = false;  // run with inputs and outputs swapped
};

std::vector<RulebookCase> RulebookCases(Random& random) {
  std::vector<RulebookCase> cases;
  cases.push_back({"strided", RandomRulebook(8, 300, 170, 0.4, random)});
  cases.push_back({"inverse", RandomRulebook(8, 300, 170, 0.4, random), false, true});
  cases.push_back({"submanifold", RandomSubmanifoldRulebook(27, 211, 0.3, random), true});
  cases.push_back({"sparse", RandomSubmanifoldRulebook(27, 530, 0.03, random), true});
  cases.push_back({"dense", DenseRulebook(27, 150)});
  cases.push_back({"identity alone", RandomSubmanifoldRulebook(1, 130, 0, random), true});
  cases.push_back({"one row", RandomSubmanifoldRulebook(27, 1, 0, random), true});
  cases.push_back({"no pairs", RandomRulebook(5, 60, 70, 0, random)});
  cases.push_back({"no inputs", RandomRulebook(3, 0, 9, 0, random)});
  cases.push_back({"no outputs", RandomRulebook(3, 9, 0, 0, random)});
  cases.push_back({"no offsets", RandomRulebook(0, 9, 40, 0, random)});
  cases.push_back({"343 offsets", RandomSubmanifoldRulebook(343, 40, 0.2, random), true});
  return cases;
}

class FetchOnDemandTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if (cuda::FetchOnDemandTileRows(GetParam(), 16, 16).empty()) GTEST_SKIP() << "not served by this GPU";
  }
};

struct Case {
  const RulebookCase* rulebook;
  int32_t tile_rows;
  int32_t in_channels, out_channels;
  Margins margins;
  EpilogueCase epilogue;
  DType dtype, out_dtype;
  bool in_place;  // the output is the residual
};

// NaN wherever nobody may read: between the rows' channels, and in rows that no pair names.
void Poison(const RulebookView& rulebook, Matrix& in) {
  std::vector<bool> is_read(static_cast<size_t>(in.rows));
  for (int64_t p = 0; p < rulebook.num_pairs(); ++p) is_read[static_cast<size_t>(rulebook.in_rows[p])] = true;
  for (int64_t row = 0; row < in.rows; ++row) {
    for (int64_t column = -in.before; column < in.pitch - in.before; ++column) {
      if (column < 0 || column >= in.channels || !is_read[static_cast<size_t>(row)]) {
        in.at(row, column) = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

void Check(const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c.rulebook->name << " of " << c.rulebook->rulebook.num_out_rows
                                  << " rows, tiles of " << c.tile_rows << ", " << c.in_channels << " to "
                                  << c.out_channels << " channels as " << NameOf(c.out_dtype) << ", margin "
                                  << c.margins.before << ", bias " << c.epilogue.bias << ", residual "
                                  << c.epilogue.residual << ", ReLU " << c.epilogue.relu << ", in place "
                                  << c.in_place);
  RulebookView rulebook = c.rulebook->rulebook.View();
  if (c.rulebook->is_inverse) {
    std::swap(rulebook.in_rows, rulebook.out_rows);
    std::swap(rulebook.num_in_rows, rulebook.num_out_rows);
  }
  const int32_t num_offsets = rulebook.num_offsets;
  const int64_t neighbours_pitch = rulebook.num_out_rows + 5;
  const DeviceArray<int32_t> neighbours(Device::kCuda, Neighbours(rulebook, neighbours_pitch));

  Matrix in(rulebook.num_in_rows, c.in_channels, c.margins, &random, c.dtype);
  const Matrix residual(rulebook.num_out_rows, c.out_channels, c.margins, &random, c.dtype);
  const int64_t matrix = int64_t{c.in_channels} * c.out_channels;
  const std::vector<float> weights = random.Floats(num_offsets * matrix, c.dtype);
  const std::vector<float> bias = random.Floats(c.out_channels);
  const Expected expected = NaiveConvolution(rulebook, in, weights, c.out_channels, c.epilogue.bias ? &bias : nullptr,
                                             c.epilogue.residual ? &residual : nullptr, c.epilogue.relu);
  Poison(rulebook, in);

  std::vector<float> ordered;
  for (const int32_t k : WalkOrder(num_offsets, c.rulebook->is_symmetric)) {
    ordered.insert(ordered.end(), weights.begin() + k * matrix, weights.begin() + (k + 1) * matrix);
  }
  const DeviceMatrix device_in(Device::kCuda, c.dtype, in), device_residual(Device::kCuda, c.dtype, residual);
  const DeviceValues device_weights(Device::kCuda, c.dtype, ordered), device_bias(Device::kCuda, DType::kFloat32, bias);
  const Matrix out_at_first = c.in_place ? residual : Matrix(residual.rows, c.out_channels, c.margins, nullptr);
  std::vector<uint8_t> first_bytes;
  for (int run = 0; run < 2; ++run) {
    const DeviceMatrix out(Device::kCuda, c.out_dtype, out_at_first);
    ExpectCudaSuccess(cuda::FetchOnDemand(
        {.num_offsets = num_offsets,
         .neighbours = neighbours.data(),
         .neighbours_pitch = neighbours_pitch,
         .num_in_rows = rulebook.num_in_rows,
         .num_out_rows = rulebook.num_out_rows,
         .is_symmetric = c.rulebook->is_symmetric,
         .identity_offset = c.rulebook->is_symmetric ? num_offsets / 2 : -1,
         .dtype = c.dtype,
         .out_dtype = c.out_dtype,
         .in = device_in.data(),
         .in_pitch = device_in.pitch(),
         .in_channels = c.in_channels,
         .weights = device_weights.data(),
         .out = out.data(),
         .out_pitch = out.pitch(),
         .out_channels = c.out_channels,
         .epilogue = c.epilogue.With(device_bias.data(), c.in_place ? out.View() : device_residual.View()),
         .tile_rows = c.tile_rows},
        TestStream()));
    if (run == 0) {
      ExpectNear(out.ToHost(), expected, c.dtype);
      first_bytes = out.Bytes();
    } else {
      EXPECT_EQ(out.Bytes(), first_bytes);
    }
  }
}

// What tile_rows may be, and 0.
std::vector<int32_t> TileRows(DType dtype, int32_t in_channels, int32_t out_channels) {
  std::vector<int32_t> rows = cuda::FetchOnDemandTileRows(dtype, in_channels, out_channels);
  rows.push_back(0);
  return rows;
}

TEST_P(FetchOnDemandTest, EveryKindOfRulebookInEveryTile) {
  const DType dtype = GetParam();
  Random random(31);
  const std::vector<std::pair<int32_t, int32_t>> channels = {{1, 1},   {3, 8},    {4, 32},   {8, 12},  {12, 3},
                                                             {16, 32}, {32, 96},  {80, 16},  {64, 64}, {33, 40},
                                                             {96, 96}, {24, 128}, {128, 24}, {16, 160}};
  const std::vector<Margins> margins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}, {.after = 5}};
  const std::vector<RulebookCase> rulebooks = RulebookCases(random);
  for (const RulebookCase& rulebook : rulebooks) {
    for (const int32_t tile_rows : TileRows(dtype, 128, 128)) {
      for (int repetition = 0; repetition < 2; ++repetition) {
        const auto [in_channels, out_channels] = random.OneOf(channels);
        const DType out_dtype = random.OneOf(OutDTypes(dtype));
        const EpilogueCase epilogue = random.OneOf(EpilogueCases());
        Check({.rulebook = &rulebook,
               .tile_rows = tile_rows,
               .in_channels = in_channels,
               .out_channels = out_channels,
               .margins = random.OneOf(margins),
               .epilogue = epilogue,
               .dtype = dtype,
               .out_dtype = out_dtype,
               .in_place = epilogue.residual && out_dtype == dtype && random.Chance(0.5)},
              random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(FetchOnDemandTest, EveryWidthOfRows) {
  const DType dtype = GetParam();
  Random random(32);
  const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(27, 70, 0.4, random), true};
  for (const int32_t channels : {1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 32, 48, 65, 96, 128, 192, 256}) {
    Check({&rulebook, 64, channels, channels == 256 ? 8 : 16, {}, {true, false, true}, dtype, dtype, false}, random);
    Check({&rulebook, 64, 16, channels, {}, {true, true, true}, dtype, dtype, false}, random);
    Check({&rulebook, 0, 16, channels, {.after = 3}, {true, true, false}, dtype, DType::kFloat32, false}, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(FetchOnDemandTest, TheNetworksWidthsInEveryTile) {
  const DType dtype = GetParam();
  Random random(33);
  const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(27, 300, 0.25, random), true};
  const std::vector<std::pair<int32_t, int32_t>> channels = {{4, 32}, {32, 64}, {192, 96}, {128, 128}, {384, 256}};
  for (const auto& [in_channels, out_channels] : channels) {
    for (const int32_t tile_rows : TileRows(dtype, in_channels, out_channels)) {
      Check({&rulebook, tile_rows, in_channels, out_channels, {}, {true, true, true}, dtype, dtype, false}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FetchOnDemandTest, RowsAroundATile) {
  const DType dtype = GetParam();
  Random random(34);
  for (const int32_t tile_rows : TileRows(dtype, 32, 48)) {
    std::vector<int64_t> rows = {1, 15, 16, 17};
    if (tile_rows > 0) rows = {tile_rows - 1, tile_rows, tile_rows + 1, 2 * tile_rows};
    for (const int64_t num_rows : rows) {
      const RulebookCase rulebook{"submanifold", RandomSubmanifoldRulebook(5, num_rows, 0.5, random), true};
      Check({&rulebook, tile_rows, 32, 48, {}, {true, false, false}, dtype, dtype, false}, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FetchOnDemandTest, TileRowsAscend) {
  for (const int32_t in_channels : {1, 96, 512}) {
    for (const int32_t out_channels : {1, 96, 512}) {
      const std::vector<int32_t> rows = cuda::FetchOnDemandTileRows(GetParam(), in_channels, out_channels);
      ASSERT_FALSE(rows.empty());
      EXPECT_GT(rows.front(), 0);
      for (size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows[i - 1], rows[i]);
    }
  }
  EXPECT_TRUE(cuda::FetchOnDemandTileRows(DType::kFloat32, 16, 16).empty());
  EXPECT_TRUE(cuda::FetchOnDemandTileRows(DType::kUint8, 16, 16).empty());
}

TEST_P(FetchOnDemandTest, WhatItDoesNotServeIsRefused) {
  const DType dtype = GetParam();
  const cuda::FetchOnDemandParams good{.num_offsets = 1,
                                       .num_in_rows = 1,
                                       .num_out_rows = 1,
                                       .dtype = dtype,
                                       .out_dtype = dtype,
                                       .in_channels = 8,
                                       .out_channels = 8};
  const auto expect_refused = [&](const auto& spoil) {
    cuda::FetchOnDemandParams params = good;
    spoil(params);
    EXPECT_EQ(cuda::FetchOnDemand(params, TestStream()), cudaErrorInvalidValue);
  };
  expect_refused([](auto& params) { params.num_offsets = kMaxKernelVolume + 1; });
  expect_refused([](auto& params) { params.tile_rows = 33; });
  expect_refused([](auto& params) { params.tile_rows = -1; });
  expect_refused([](auto& params) { params.tile_rows = 1 << 20; });
  expect_refused([](auto& params) { params.dtype = params.out_dtype = DType::kFloat32; });
  expect_refused([](auto& params) { params.out_dtype = DType::kUint8; });
  expect_refused([](auto& params) {
    params.num_offsets = 27;
    params.is_symmetric = true;
    params.identity_offset = 0;
  });
  cuda::FetchOnDemandParams empty = good;
  empty.num_out_rows = 0;
  EXPECT_EQ(cuda::FetchOnDemand(empty, TestStream()), cudaSuccess);
}

// Slices of rows so wide that the last ones begin beyond 2^31 values.
TEST_P(FetchOnDemandTest, RowsBeyond2To31Values) {
  if (GetParam() != DType::kFloat16) GTEST_SKIP() << "one dtype is enough";
  size_t free_bytes = 0, total_bytes = 0;
  ExpectCudaSuccess(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{12} << 30) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr int64_t kPitch = 8192, kRows = 270000, kValueBytes = 2;
  constexpr int32_t kChannels = 16;
  static_assert(kPitch * kRows > int64_t{1} << 31);
  const DeviceArray<uint16_t> in(Device::kCuda, kPitch * kRows), out(Device::kCuda, kPitch * kRows);
  // Exact in float16: a row's values are all one number, and so are the weights, 1/16. Row o reads row kRows - 1 - o.
  const auto value_of = [](int64_t row) { return static_cast<float>(row % 1021) / 8; };
  std::vector<uint16_t> values(kRows * kChannels);
  std::vector<int32_t> neighbours(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    neighbours[static_cast<size_t>(row)] = static_cast<int32_t>(kRows - 1 - row);
    std::fill_n(values.begin() + row * kChannels, kChannels, ToBits(DType::kFloat16, value_of(row)));
  }
  const DeviceArray<int32_t> device_neighbours(Device::kCuda, neighbours);
  const DeviceValues weights(Device::kCuda, DType::kFloat16, std::vector<float>(kChannels * kChannels, 1.0f / 16));
  support::Synchronize();
  ExpectCudaSuccess(cudaMemcpy2D(in.data(), kPitch * kValueBytes, values.data(), kChannels * kValueBytes,
                                 kChannels * kValueBytes, kRows, cudaMemcpyHostToDevice));
  ExpectCudaSuccess(cudaDeviceSynchronize());  // from pageable memory a copy may still be on its way
  ExpectCudaSuccess(cuda::FetchOnDemand({.num_offsets = 1,
                                         .neighbours = device_neighbours.data(),
                                         .neighbours_pitch = kRows,
                                         .num_in_rows = kRows,
                                         .num_out_rows = kRows,
                                         .dtype = DType::kFloat16,
                                         .out_dtype = DType::kFloat16,
                                         .in = in.data(),
                                         .in_pitch = kPitch,
                                         .in_channels = kChannels,
                                         .weights = weights.data(),
                                         .out = out.data(),
                                         .out_pitch = kPitch,
                                         .out_channels = kChannels},
                                        TestStream()));
  support::Synchronize();
  std::vector<uint16_t> result(values.size());
  ExpectCudaSuccess(cudaMemcpy2D(result.data(), kChannels * kValueBytes, out.data(), kPitch * kValueBytes,
                                 kChannels * kValueBytes, kRows, cudaMemcpyDeviceToHost));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kChannels; ++c) {
      ASSERT_EQ(FromBits(DType::kFloat16, result[static_cast<size_t>(row * kChannels + c)]), value_of(kRows - 1 - row))
          << "row " << row << " channel " << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, FetchOnDemandTest, testing::Values(DType::kFloat16, DType::kBfloat16),
                         [](const auto& dtype) { return std::string(NameOf(dtype.param)); });

// More rulebooks than one launch takes, of every size; counts on the device below the capacities.
TEST(SwapNeighboursTest, TurnsEveryPairRound) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(35);
  struct Swapped {
    Rulebook rulebook;
    int64_t in_capacity;
    std::unique_ptr<DeviceArray<int32_t>> neighbours, swapped;
    std::unique_ptr<DeviceArray<int64_t>> num_out;
  };
  std::vector<Swapped> all;
  std::vector<SwapNeighboursParams> params;
  for (int i = 0; i < 40; ++i) {
    const int64_t num_in = i % 5 == 4 ? 0 : 1 + 531 * (i % 7), num_out = i % 6 == 5 ? 0 : 1 + 701 * (i % 4);
    const int32_t num_offsets = i == 3 ? 343 : i == 8 ? 0 : 1 + i % 27;
    Swapped swapped{.rulebook = RandomRulebook(num_offsets, num_in, num_out, 0.5, random), .in_capacity = num_in + 3};
    const int64_t out_capacity = num_out + 4;
    swapped.neighbours =
        std::make_unique<DeviceArray<int32_t>>(Device::kCuda, Neighbours(swapped.rulebook.View(), out_capacity));
    swapped.swapped =
        std::make_unique<DeviceArray<int32_t>>(Device::kCuda, static_cast<size_t>(num_offsets * swapped.in_capacity));
    swapped.num_out = std::make_unique<DeviceArray<int64_t>>(Device::kCuda, std::vector<int64_t>{num_out});
    params.push_back({.num_offsets = num_offsets,
                      .neighbours = swapped.neighbours->data(),
                      .out_capacity = out_capacity,
                      .num_out = swapped.num_out->data(),
                      .in_capacity = swapped.in_capacity,
                      .swapped = swapped.swapped->data()});
    all.push_back(std::move(swapped));
  }
  ExpectCudaSuccess(cuda::SwapNeighbours(params, TestStream()));
  for (const Swapped& swapped : all) {
    const RulebookView rulebook = swapped.rulebook.View();
    std::vector<int32_t> expected(static_cast<size_t>(rulebook.num_offsets * swapped.in_capacity), -1);
    for (int64_t k = 0; k < rulebook.num_offsets; ++k) {
      for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
        expected[static_cast<size_t>(k * swapped.in_capacity + rulebook.in_rows[p])] = rulebook.out_rows[p];
      }
    }
    EXPECT_EQ(swapped.swapped->ToHost(), expected);
  }
  ExpectCudaSuccess(cuda::SwapNeighbours({}, TestStream()));
}

}  // namespace
}  // namespace voxserve::kernels
