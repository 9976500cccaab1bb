// Compares the implicit GEMM in 8 bits, with every block, with loops over whole numbers and with the CPU's product,
// byte by byte.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/int8/int8_product.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"
#include "tests/kernels/int8/int8_device_testing.h"

namespace voxserve::kernels::int8_implicit_gemm_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

class Int8ImplicitGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if (cuda::Int8ImplicitGemmBlocks(32).empty()) GTEST_SKIP() << "not served by this GPU";
  }
};

std::vector<ConvBlock> Blocks(int32_t out_channels) {
  std::vector<ConvBlock> blocks = cuda::Int8ImplicitGemmBlocks(out_channels);
  blocks.push_back({});
  return blocks;
}

cudaError_t RunInt8(Int8ImplicitGemmParams params) {
  const DeviceArray<uint8_t> workspace(Device::kCuda, cuda::Int8ImplicitGemmWorkspaceBytes(params));
  params.workspace = workspace.data();
  const cudaError_t status = cuda::Int8ImplicitGemm(params, TestStream());
  support::Synchronize();
  return status;
}

DeviceArray<int8_t> Packed(int32_t num_offsets, int32_t in_channels, int32_t out_channels,
                           const std::vector<int8_t>& weights) {
  return {Device::kCuda, PackInt8ImplicitGemmWeights(num_offsets, in_channels, out_channels, weights.data())};
}

struct Case {
  Int8Case types;
  RulebookView rulebook;
  int32_t in_channels, out_channels;
  bool is_aligned;  // rows begin at multiples of 16 values, as the engine keeps them
  int64_t spare_rows = 0;
  int32_t shortcut_channels = 0;  // 0: no shortcut
  bool has_tiles = true;          // false: a linear layer, whose rulebook is the identity
  bool runs_on_cpu = false;       // the rulebook has the tiles that the CPU's product reads
};

std::ostream& operator<<(std::ostream& os, const Case& c) {
  return os << c.rulebook.num_offsets << " offsets, " << c.rulebook.num_out_rows << " rows, " << c.in_channels << " + "
            << c.shortcut_channels << " to " << c.out_channels << " channels, " << NameOf(c.types.in) << " to "
            << NameOf(c.types.out) << ", bias " << c.types.bias << ", residual " << NameOf(c.types.residual)
            << " (uint16: none), activation " << static_cast<int>(c.types.activation.function) << ", folded "
            << c.types.is_folded << ", aligned " << c.is_aligned << ", spare rows " << c.spare_rows;
}

Int8Table RandomInput(const Case& c, int64_t rows, int32_t channels, Random& random) {
  const auto padding = static_cast<int32_t>(PaddedInt8Channels(channels)) - channels;
  Int8Table in(c.types.in, rows, channels, c.is_aligned ? 16 : 1, c.is_aligned ? padding : 2);
  in.Fill(random);
  return in;
}

// Adds in[in_row] W to sums[out_row]. weights: the offset's first.
void AddProducts(const Int8Table& in, int64_t in_row, int32_t in_channels, const int8_t* weights, int32_t out_channels,
                 int64_t* sums) {
  for (int32_t i = 0; i < in_channels; ++i) {
    const auto value = static_cast<int64_t>(in.Get(in_row, i));
    for (int32_t o = 0; o < out_channels; ++o) sums[o] += value * weights[int64_t{i} * out_channels + o];
  }
}

// Runs a case with every block on two orders of the rows.
void Check(const Case& c, Random& random) {
  SCOPED_TRACE(testing::Message() << c);
  const RulebookView& rulebook = c.rulebook;
  const int64_t num_rows = rulebook.num_out_rows, capacity = num_rows + c.spare_rows;
  Int8Table in = RandomInput(c, rulebook.num_in_rows, c.in_channels, random);
  Int8Table shortcut = RandomInput(c, num_rows, std::max(c.shortcut_channels, 1), random);
  Int8Product product(c.types, num_rows, c.in_channels, c.out_channels, rulebook.num_offsets, random, c.is_aligned);
  const std::vector<int8_t> shortcut_weights = RandomWeights(random, int64_t{c.shortcut_channels} * c.out_channels);
  std::vector<int64_t> sums(static_cast<size_t>(num_rows * c.out_channels));
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t p = rulebook.offset_begin[k]; p < rulebook.offset_begin[k + 1]; ++p) {
      AddProducts(in, rulebook.in_rows[p], c.in_channels, product.Weights(k, 0), c.out_channels,
                  sums.data() + int64_t{rulebook.out_rows[p]} * c.out_channels);
    }
  }
  for (int64_t row = 0; row < num_rows && c.shortcut_channels > 0; ++row) {
    AddProducts(shortcut, row, c.shortcut_channels, shortcut_weights.data(), c.out_channels,
                sums.data() + row * c.out_channels);
  }
  const Int8Table expected = product.Finish(sums);
  if (c.runs_on_cpu) {
    ThreadPool pool(2);
    const std::vector<Int8Line> weights =
        cpu::PackInt8Weights(product.weights().data(), rulebook.num_offsets, c.in_channels, c.out_channels);
    Int8Table out = product.Out();
    const std::vector<Int8Line> lines =
        cpu::PackInt8Weights(shortcut_weights.data(), 1, c.shortcut_channels, c.out_channels);
    cpu::Int8Conv({.rulebook = rulebook,
                   .in = in.View(),
                   .weights = weights.data(),
                   .out = out.View(),
                   .epilogue = product.Epilogue(),
                   .shortcut_in = c.shortcut_channels > 0 ? ConstRows(shortcut.View()) : ConstRows(),
                   .shortcut_weights = lines.data()},
                  pool, std::pmr::get_default_resource());
    ASSERT_EQ(out.bytes(), expected.bytes()) << "the CPU's product";
  }

  const NeighbourTable table = Neighbours(rulebook, num_rows);
  std::vector<int32_t> rows = RowsInTileOrder(table, SortOrder{});
  const DeviceTiles tiles(table, rows, capacity);
  std::shuffle(rows.begin(), rows.end(), random.engine());
  const DeviceTiles shuffled_tiles(table, rows, capacity);
  const DeviceTable device_in(in), device_shortcut(shortcut);
  const DeviceArray<int8_t> weights = Packed(rulebook.num_offsets, c.in_channels, c.out_channels, product.weights());
  const DeviceArray<int8_t> packed_shortcut_weights = Packed(1, c.shortcut_channels, c.out_channels, shortcut_weights);
  std::unique_ptr<DeviceTable> residual;
  if (const Int8Table* const host = product.residual()) residual = std::make_unique<DeviceTable>(*host);
  const DeviceEpilogue epilogue(product.Epilogue(), c.out_channels, residual.get());
  for (const ConvBlock& block : Blocks(c.out_channels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    for (const DeviceTiles* const of_run : {&tiles, &shuffled_tiles}) {
      const DeviceTable out(product.Out(), c.spare_rows);
      Int8ImplicitGemmParams params{.tiles = of_run->View(),
                                    .in = device_in.View(),
                                    .weights = weights.data(),
                                    .out = out.View(),
                                    .epilogue = epilogue.get(),
                                    .block = block};
      if (!c.has_tiles) {
        params.tiles.out_rows = params.tiles.in_rows = nullptr;
        params.tiles.masks = nullptr;
      }
      if (c.shortcut_channels > 0) {
        params.shortcut_in = device_shortcut.View();
        params.shortcut_weights = packed_shortcut_weights.data();
      }
      ExpectCudaSuccess(RunInt8(params));
      out.ExpectBytes(expected);
      if (testing::Test::HasFatalFailure()) return;
      const std::vector<int32_t> counters = of_run->Counters();
      ASSERT_EQ(std::count(counters.begin(), counters.end(), 0), static_cast<ptrdiff_t>(counters.size()));
      if (c.types.out != DType::kFloat32) continue;
      const int64_t pitch = PaddedInt8Channels(c.out_channels);
      const DeviceArray<uint16_t> halves(Device::kCuda, static_cast<size_t>(capacity * pitch));
      params.out = {.data = halves.data(),
                    .dtype = DType::kFloat16,
                    .channels = c.out_channels,
                    .pitch = pitch,
                    .capacity = capacity};
      ExpectCudaSuccess(RunInt8(params));
      ExpectHalves(halves, pitch, expected, num_rows, c.out_channels);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// The other tests thus run the block of 128 rows that is the default of a GPU without warp groups.
TEST_F(Int8ImplicitGemmTest, EveryWidthHasTheDefaultBlockOfSingleWarps) {
  for (const int32_t out_channels : {1, 16, 32, 33, 64, 65, 96, 128, 200, 256, 320}) {
    const ConvBlock default_block = {.rows = 128,
                                     .columns = out_channels <= 32   ? 32
                                                : out_channels <= 64 ? 64
                                                                     : 128,
                                     .split_k = 1,
                                     .uses_mma_sync = true};
    const std::vector<ConvBlock> blocks = cuda::Int8ImplicitGemmBlocks(out_channels);
    EXPECT_EQ(std::count(blocks.begin(), blocks.end(), default_block), 1) << out_channels;
  }
}

TEST_F(Int8ImplicitGemmTest, EveryWidthOfRows) {
  Random random(81);
  const Rulebook rulebook = RandomSubmanifoldRulebook(27, 150, 0.3, random);
  const std::vector<Int8Case> cases = DeviceCases();
  for (const int32_t in_channels : {1, 4, 16, 20, 32, 48, 64, 96, 100, 128, 256}) {
    for (const int32_t out_channels : {1, 8, 16, 20, 32, 48, 64, 96, 100, 128, 200, 256, 300, 320}) {
      // Most cases are aligned, as in the engine.
      Check({.types = random.OneOf(cases),
             .rulebook = rulebook.View(),
             .in_channels = in_channels,
             .out_channels = out_channels,
             .is_aligned = random.Chance(0.8),
             .spare_rows = random.OneOf(std::vector<int64_t>{0, 7, 400})},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8ImplicitGemmTest, EveryTypeAndEpilogue) {
  Random random(82);
  const Rulebook rulebook = RandomSubmanifoldRulebook(27, 211, 0.2, random);
  for (const Int8Case& types : DeviceCases()) {
    for (const auto& [in_channels, out_channels] : {std::pair(32, 32), std::pair(96, 96), std::pair(128, 256)}) {
      for (const bool is_aligned : {true, false}) {
        Check({.types = types,
               .rulebook = rulebook.View(),
               .in_channels = in_channels,
               .out_channels = out_channels,
               .is_aligned = is_aligned},
              random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Int8ImplicitGemmTest, EveryKindOfRulebook) {
  Random random(83);
  const std::vector<std::pair<int32_t, int32_t>> channels = {{4, 32}, {16, 64}, {32, 96}, {96, 96}, {40, 128}};
  const std::vector<Int8Case> cases = DeviceCases();
  for (const RulebookCase& rulebook : RulebookCases(random)) {
    if (rulebook.View().num_offsets == 0) continue;  // refused
    SCOPED_TRACE(rulebook.name);
    for (int repetition = 0; repetition < 4; ++repetition) {
      const auto [in_channels, out_channels] = random.OneOf(channels);
      Check({.types = random.OneOf(cases),
             .rulebook = rulebook.View(),
             .in_channels = in_channels,
             .out_channels = out_channels,
             .is_aligned = random.Chance(0.7),
             .spare_rows = random.OneOf(std::vector<int64_t>{0, 130})},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8ImplicitGemmTest, HasTheBytesOfTheCpu) {
  Random random(84);
  const Rulebook rulebook = RandomRulebook(8, 900, 700, 0.4, random);
  for (const Int8Case& types : DeviceCases()) {
    if (types.residual == DType::kFloat16) continue;  // no type of the CPU
    for (const auto& [in_channels, out_channels] : {std::pair(32, 64), std::pair(96, 96), std::pair(20, 44)}) {
      Check({.types = types,
             .rulebook = rulebook.View(),
             .in_channels = in_channels,
             .out_channels = out_channels,
             .is_aligned = true,
             .shortcut_channels = in_channels % 16 == 0 && random.Chance(0.5) ? 48 : 0,
             .runs_on_cpu = true},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8ImplicitGemmTest, LinearLayer) {
  Random random(85);
  const Rulebook rulebook = RandomSubmanifoldRulebook(1, 333, 0, random);
  for (const int32_t in_channels : {16, 96, 100, 256}) {
    Check({.types = random.OneOf(DeviceCases()),
           .rulebook = rulebook.View(),
           .in_channels = in_channels,
           .out_channels = 96,
           .is_aligned = true,
           .has_tiles = false},
          random);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Int8ImplicitGemmTest, AddsAShortcut) {
  Random random(86);
  const Rulebook rulebook = RandomSubmanifoldRulebook(27, 211, 0.1, random);
  for (const int32_t shortcut_channels : {16, 32, 96, 192}) {
    for (const int32_t out_channels : {32, 64, 96, 128, 256}) {
      Check({.types = random.OneOf(DeviceCases()),
             .rulebook = rulebook.View(),
             .in_channels = 96,
             .out_channels = out_channels,
             .is_aligned = true,
             .spare_rows = 130,
             .shortcut_channels = shortcut_channels},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

// Masks of several words, and of none: the shortcut's slices fill the stages between two words, or are all that a tile
// has.
TEST_F(Int8ImplicitGemmTest, AddsAShortcutToManyOffsetsAndToNone) {
  Random random(89);
  for (const double density : {0.0, 0.02}) {
    const Rulebook rulebook = RandomRulebook(125, 300, 211, density, random);
    for (const int32_t in_channels : {16, 32, 96}) {
      Check({.types = random.OneOf(DeviceCases()),
             .rulebook = rulebook.View(),
             .in_channels = in_channels,
             .out_channels = 96,
             .is_aligned = true,
             .spare_rows = 130,
             .shortcut_channels = random.OneOf(std::vector<int32_t>{16, 48, 192})},
            random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8ImplicitGemmTest, ManyTiles) {
  Random random(87);
  const Rulebook rulebook = RandomSubmanifoldRulebook(27, 60'000, 0.05, random);
  for (const auto& [in_channels, out_channels] : {std::pair(32, 32), std::pair(32, 64), std::pair(16, 96)}) {
    Check({.types = DeviceCases().front(),
           .rulebook = rulebook.View(),
           .in_channels = in_channels,
           .out_channels = out_channels,
           .is_aligned = true},
          random);
    if (HasFatalFailure()) return;
  }
}

// The largest numbers, whose sums 16 bits would not hold.
TEST_F(Int8ImplicitGemmTest, TheLargestSumsAreExact) {
  Random random(88);
  constexpr int32_t kOffsets = 27, kChannels = 256, kRows = 64;
  const Rulebook rulebook = DenseRulebook(kOffsets, kRows);
  const NeighbourTable table = Neighbours(rulebook.View(), kRows);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceArray<float> one(Device::kCuda, std::vector<float>(kChannels, 1.0f));
  for (const DType dtype : {DType::kUint8, DType::kInt8}) {
    for (const int8_t weight : {int8_t{127}, int8_t{-127}}) {
      const float largest = dtype == DType::kUint8 ? 255 : -127;
      Int8Table in(dtype, kRows, kChannels, 0, 0), expected(DType::kFloat32, kRows, kChannels, 0, 0);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int32_t c = 0; c < kChannels; ++c) {
          in.Set(row, c, largest);
          expected.Set(row, c,
                       static_cast<float>(int64_t{kOffsets} * kChannels * static_cast<int64_t>(largest) * weight));
        }
      }
      const DeviceTable device_in(in);
      const DeviceArray<int8_t> weights =
          Packed(kOffsets, kChannels, kChannels,
                 std::vector<int8_t>(static_cast<size_t>(kOffsets) * kChannels * kChannels, weight));
      for (const ConvBlock& block : Blocks(kChannels)) {
        SCOPED_TRACE(testing::PrintToString(block));
        const DeviceTable out(Int8Table(DType::kFloat32, kRows, kChannels, 0, 0));
        ExpectCudaSuccess(RunInt8({.tiles = tiles.View(),
                                   .in = device_in.View(),
                                   .weights = weights.data(),
                                   .out = out.View(),
                                   .epilogue = {.multiplier = one.data()},
                                   .block = block}));
        out.ExpectBytes(expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Halves of all numbers of 8 bits: those of odd ones lie between two whole numbers.
TEST_F(Int8ImplicitGemmTest, HalvesAreRoundedToEven) {
  constexpr int32_t kChannels = 32, kRows = 64;
  const Rulebook rulebook = DenseRulebook(1, kRows);
  const NeighbourTable table = Neighbours(rulebook.View(), kRows);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceArray<float> half(Device::kCuda, std::vector<float>(kChannels, 0.5f));
  std::vector<int8_t> identity(size_t{kChannels} * kChannels);
  for (size_t c = 0; c < kChannels; ++c) identity[c * kChannels + c] = 1;
  const DeviceArray<int8_t> weights = Packed(1, kChannels, kChannels, identity);
  for (const DType dtype : {DType::kUint8, DType::kInt8}) {
    Int8Table in(dtype, kRows, kChannels, 0, 0), expected(dtype, kRows, kChannels, 0, 0);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t c = 0; c < kChannels; ++c) {
        const auto value = static_cast<float>((row * kChannels + c) % 255 - (dtype == DType::kInt8 ? 127 : 0));
        in.Set(row, c, value);
        expected.Set(row, c, std::nearbyint(value / 2));
      }
    }
    const DeviceTable device_in(in);
    for (const ConvBlock& block : Blocks(kChannels)) {
      SCOPED_TRACE(testing::PrintToString(block));
      const DeviceTable out(Int8Table(dtype, kRows, kChannels, 0, 0));
      ExpectCudaSuccess(RunInt8({.tiles = tiles.View(),
                                 .in = device_in.View(),
                                 .weights = weights.data(),
                                 .out = out.View(),
                                 .epilogue = {.multiplier = half.data()},
                                 .block = block}));
      out.ExpectBytes(expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Int8ImplicitGemmTest, RefusesWhatItCannotCompute) {
  constexpr int32_t kRows = 64, kChannels = 32;
  Random random(89);
  const Rulebook rulebook = DenseRulebook(3, kRows);
  const NeighbourTable table = Neighbours(rulebook.View(), kRows);
  const DeviceTiles tiles(table, RowsInTileOrder(table, SortOrder{}), kRows);
  const DeviceTable in(Int8Table(DType::kUint8, kRows, kChannels, 0, 0)),
      out(Int8Table(DType::kUint8, kRows, kChannels, 0, 0)), floats(Int8Table(DType::kFloat32, kRows, kChannels, 0, 0));
  const DeviceArray<float> one(Device::kCuda, std::vector<float>(kChannels, 1.0f));
  const DeviceArray<int8_t> weights = Packed(3, kChannels, kChannels, RandomWeights(random, 3 * kChannels * kChannels));
  const Int8ImplicitGemmParams served{.tiles = tiles.View(),
                                      .in = in.View(),
                                      .weights = weights.data(),
                                      .out = out.View(),
                                      .epilogue = {.multiplier = one.data()}};
  ExpectCudaSuccess(RunInt8(served));
  const auto expect_refusal = [&](const char* what, const auto& change) {
    Int8ImplicitGemmParams params = served;
    change(params);
    EXPECT_EQ(RunInt8(params), cudaErrorInvalidValue) << what;
  };
  expect_refusal("inputs of float32", [&](auto& params) { params.in = floats.View(); });
  expect_refusal("outputs of uint16", [](auto& params) { params.out.dtype = DType::kUint16; });
  expect_refusal("a residual of bfloat16", [&](auto& params) {
    params.epilogue.residual = floats.View();
    params.epilogue.residual.dtype = DType::kBfloat16;
  });
  expect_refusal("no multiplier", [](auto& params) { params.epilogue.multiplier = nullptr; });
  expect_refusal("a block that is not offered", [](auto& params) { params.block = {.rows = 64, .columns = 48}; });
  expect_refusal("a block of single warps with split K", [](auto& params) {
    params.block = {.rows = 128, .columns = 128, .split_k = 2, .uses_mma_sync = true};
  });
  expect_refusal("split K without counters", [](auto& params) {
    params.block = {.rows = 128, .columns = 128, .split_k = 2};
    params.tiles.counters = nullptr;
  });
  expect_refusal("a shortcut of another type", [&](auto& params) {
    params.shortcut_in = in.View();
    params.shortcut_in.dtype = DType::kInt8;
    params.shortcut_weights = weights.data();
  });
  expect_refusal("sums of no products", [](auto& params) { params.tiles.num_offsets = 0; });
  expect_refusal("sums that may exceed an int32", [](auto& params) { params.tiles.num_offsets = 2100; });
}

}  // namespace
}  // namespace voxserve::kernels::int8_implicit_gemm_cuda_test
