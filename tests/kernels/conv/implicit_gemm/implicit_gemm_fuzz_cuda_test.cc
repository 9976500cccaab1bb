// Tests the tiles that the GPU makes together with the implicit GEMM that reads them, for masks of every kind and up to
// a million rows. Factors are small integers, so sums are exact in any order and results are compared bit by bit.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::implicit_gemm_fuzz_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// Returns integers from -3 to 3. A sum of 625 * 256 of their products stays below 2^24, so float32 holds it exactly.
std::vector<float> Integers(int64_t count, Random& random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.engine()() % 7) - 3;
  return values;
}

// Owns the tiles that the GPU makes from a neighbour table.
class MadeTiles {
 public:
  MadeTiles(const NeighbourTable& table, int64_t capacity) : memory_(table.num_offsets, capacity) {
    const DeviceArray<int32_t> neighbours(Device::kCuda, table.in_rows);
    const DeviceArray<uint8_t> workspace(Device::kCuda, memory_.WorkspaceBytes());
    support::CopyToDevice(Device::kCuda, memory_.num_out(), &table.num_rows, sizeof(int64_t));
    ExpectCudaSuccess(memory_.Make(neighbours.data(), table.pitch, workspace.data()));
    support::Synchronize();
  }

  TilesView View() const { return memory_.View(); }

 private:
  TilesMemory memory_;
};

struct FuzzCase {
  Presence presence;
  double density;
  int32_t num_offsets;
  int64_t num_rows;
  int32_t in_channels, out_channels;
  DType dtype, out_dtype;
  Margins margins;
};

// Returns the first row with a pair, the first row without one, the last row, and random rows until comparing them
// would take more than kMostProducts products.
std::vector<int64_t> SampleOfRows(const NeighbourTable& table, int64_t products_a_pair, Random& random) {
  constexpr int64_t kMostProducts = 20'000'000;
  const auto num_pairs = [&](int64_t row) {
    int64_t count = 0;
    for (int32_t k = 0; k < table.num_offsets; ++k) count += table.at(k, row) >= 0 ? 1 : 0;
    return count;
  };
  std::vector<int64_t> rows = {table.num_rows - 1};
  for (const bool has : {true, false}) {
    for (int64_t row = 0; row < table.num_rows; ++row) {
      if ((num_pairs(row) > 0) != has) continue;
      rows.push_back(row);
      break;
    }
  }
  int64_t products = 0;
  for (int64_t i = 0; i < std::min<int64_t>(table.num_rows, 20000) && products < kMostProducts; ++i) {
    rows.push_back(static_cast<int64_t>(random.engine()() % static_cast<uint64_t>(table.num_rows)));
    products += num_pairs(rows.back()) * products_a_pair;
  }
  return rows;
}

void Check(const FuzzCase& c, Random& random) {
  SCOPED_TRACE(testing::Message() << "masks of kind " << static_cast<int>(c.presence) << ", density " << c.density
                                  << ", " << c.num_offsets << " offsets, " << c.num_rows << " rows, " << c.in_channels
                                  << " to " << c.out_channels << " channels, " << NameOf(c.dtype) << " to "
                                  << NameOf(c.out_dtype) << ", margins " << c.margins.before << "+" << c.margins.after);
  const int64_t capacity = c.num_rows + static_cast<int64_t>(random.engine()() % 300);
  const int64_t num_in = 1 + static_cast<int64_t>(random.engine()() % static_cast<uint64_t>(2 * c.num_rows));
  const NeighbourTable table =
      RandomNeighbours(c.presence, c.density, c.num_offsets, c.num_rows, num_in, capacity + 3, random);
  Matrix in(num_in, c.in_channels, c.margins, nullptr);
  const std::vector<float> features = Integers(num_in * c.in_channels, random);
  for (int64_t row = 0; row < num_in; ++row) {
    for (int64_t i = 0; i < c.in_channels; ++i) {
      in.at(row, i) = features[static_cast<size_t>(row * c.in_channels + i)];
    }
  }
  Poison(table, in);
  const std::vector<float> weights = Integers(int64_t{c.num_offsets} * c.in_channels * c.out_channels, random);
  const std::vector<float> bias = Integers(c.out_channels, random);

  const MadeTiles tiles(table, capacity);
  const DeviceMatrix device_in(Device::kCuda, c.dtype, in);
  const DeviceValues device_weights = PackedWeights(c.num_offsets, c.in_channels, c.out_channels, c.dtype, weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  const DeviceMatrix out(Device::kCuda, c.out_dtype, OutBefore(c.num_rows, capacity, c.out_channels, c.margins));
  const std::vector<uint8_t> bytes_before = out.Bytes();
  std::vector<uint8_t> first_bytes;
  for (const ConvBlock& block : AllBlocks(c.dtype, c.out_channels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    support::CopyToDevice(Device::kCuda, static_cast<char*>(out.data()) - c.margins.before * SizeOf(c.out_dtype),
                          bytes_before.data(), bytes_before.size());
    ExpectCudaSuccess(RunImplicitGemm(
        {.tiles = tiles.View(),
         .operands = {device_in.View(), out.View(), device_weights.data(), {.bias = device_bias.data()}},
         .block = block}));
    if (!first_bytes.empty()) {
      ASSERT_TRUE(out.Bytes() == first_bytes) << "blocks differ though sums are exact";
      continue;
    }
    first_bytes = out.Bytes();
    const Matrix result = out.ToHost();
    ExpectUntouched(result, c.num_rows);
    for (int64_t row = 0; row < c.num_rows; ++row) {
      for (int64_t o = 0; o < c.out_channels; ++o) {
        ASSERT_FALSE(std::isnan(result.at(row, o))) << "row " << row << " channel " << o;
      }
    }
    for (const int64_t row : SampleOfRows(table, int64_t{c.in_channels} * c.out_channels, random)) {
      std::vector<double> sums(bias.begin(), bias.end());
      for (int64_t k = 0; k < c.num_offsets; ++k) {
        const int32_t in_row = table.at(static_cast<int32_t>(k), row);
        if (in_row < 0) continue;
        for (int64_t i = 0; i < c.in_channels; ++i) {
          const double value = in.at(in_row, i);
          const float* const of_channel = weights.data() + (k * c.in_channels + i) * c.out_channels;
          for (size_t o = 0; o < sums.size(); ++o) sums[o] += value * of_channel[o];
        }
      }
      for (int64_t o = 0; o < c.out_channels; ++o) {
        ASSERT_EQ(result.at(row, o), Rounded(c.out_dtype, static_cast<float>(sums[static_cast<size_t>(o)])))
            << "row " << row << " channel " << o;
      }
    }
  }
}

using ImplicitGemmFuzzTest = ImplicitGemmTest;

TEST_P(ImplicitGemmFuzzTest, MasksOfEveryKind) {
  constexpr int64_t kMostValues = 3'000'000;  // limits the size of a table or a matrix
  const std::vector<int32_t> num_offsets = {1, 2, 3, 5, 8, 9, 27, 28, 31, 32, 33, 64, 125, 343, 625};
  const std::vector<int32_t> in_channels = {1, 3, 4, 8, 12, 16, 20, 32, 36, 64, 96, 100, 128, 256};
  const std::vector<int32_t> out_channels = {1, 3, 16, 20, 32, 48, 64, 96, 128, 144, 192, 256, 300};
  const std::vector<Margins> margins = {{}, {}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};
  for (uint32_t seed = 0; seed < 72; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    FuzzCase c{.presence = kPresences[seed % std::size(kPresences)],
               .density = std::pow(100, uniform(random.engine()) - 1),
               .num_offsets = random.OneOf(num_offsets),
               .num_rows = static_cast<int64_t>(10 * std::pow(10000, uniform(random.engine()))),
               .in_channels = random.OneOf(in_channels),
               .out_channels = random.OneOf(out_channels),
               .dtype = GetParam(),
               .out_dtype = random.OneOf(OutDTypes(GetParam())),
               .margins = random.OneOf(margins)};
    const int64_t widest = std::max({c.num_offsets, 2 * c.in_channels, c.out_channels});
    c.num_rows = std::min(c.num_rows, kMostValues / widest);
    Check(c, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ImplicitGemmFuzzTest, LargeBatches) {
  Random random(61);
  for (const Presence presence : kPresences) {
    Check({.presence = presence,
           .density = 0.3,
           .num_offsets = 27,
           .num_rows = 100'000,
           .in_channels = 16,
           .out_channels = 32,
           .dtype = GetParam(),
           .out_dtype = GetParam()},
          random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ImplicitGemmFuzzTest, LargeKernelsOfManyRows) {
  Random random(63);
  for (const double density : {0.01, 0.2}) {
    Check({.presence = Presence::kRandom,
           .density = density,
           .num_offsets = 343,
           .num_rows = 40'000,
           .in_channels = 8,
           .out_channels = 24,
           .dtype = GetParam(),
           .out_dtype = GetParam()},
          random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ImplicitGemmFuzzTest, AMillionRows) {
  Random random(62);
  Check({.presence = Presence::kRandom,
         .density = 0.2,
         .num_offsets = 27,
         .num_rows = 1'000'000,
         .in_channels = 4,
         .out_channels = 16,
         .dtype = GetParam(),
         .out_dtype = GetParam()},
        random);
}

// The rows of these matrices are slices of rows so wide that the last ones begin beyond 2^31 values.
TEST_P(ImplicitGemmFuzzTest, RowsBeyond2To31Values) {
  if (GetParam() != DType::kFloat16) GTEST_SKIP() << "one dtype is enough";
  size_t free_bytes = 0, total_bytes = 0;
  ExpectCudaSuccess(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{12} << 30) GTEST_SKIP() << "needs 12 GiB of device memory";
  constexpr int64_t kPitch = 8192, kRows = 270000, kValueBytes = 2;
  constexpr int32_t kChannels = 16;
  static_assert(kPitch * kRows > int64_t{1} << 31);
  const DeviceArray<uint16_t> in(Device::kCuda, kPitch * kRows), out(Device::kCuda, kPitch * kRows);
  // A row's values are all equal and all weights are 1/16, so every result is exact in float16. Output row o reads
  // input row kRows - 1 - o.
  const auto value_of = [](int64_t row) { return static_cast<float>(row % 1021) / 8; };
  std::vector<uint16_t> values(kRows * kChannels);
  NeighbourTable table(1, kRows, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    table.at(0, row) = static_cast<int32_t>(kRows - 1 - row);
    std::fill_n(values.begin() + row * kChannels, kChannels, ToBits(DType::kFloat16, value_of(row)));
  }
  const MadeTiles tiles(table, kRows);
  const DeviceValues weights =
      PackedWeights(1, kChannels, kChannels, DType::kFloat16, std::vector<float>(kChannels * kChannels, 1.0f / 16));
  ExpectCudaSuccess(cudaMemcpy2D(in.data(), kPitch * kValueBytes, values.data(), kChannels * kValueBytes,
                                 kChannels * kValueBytes, kRows, cudaMemcpyHostToDevice));
  ExpectCudaSuccess(cudaDeviceSynchronize());  // a copy from pageable memory may still be running
  const Rows in_rows{
      .data = in.data(), .dtype = DType::kFloat16, .channels = kChannels, .pitch = kPitch, .capacity = kRows};
  Rows out_rows = in_rows;
  out_rows.data = out.data();
  for (const ConvBlock& block : AllBlocks(DType::kFloat16, kChannels)) {
    SCOPED_TRACE(testing::PrintToString(block));
    ExpectCudaSuccess(cudaMemset2D(out.data(), kPitch * kValueBytes, 0xFF, kChannels * kValueBytes, kRows));
    ExpectCudaSuccess(cudaDeviceSynchronize());
    ExpectCudaSuccess(
        RunImplicitGemm({.tiles = tiles.View(), .operands = {in_rows, out_rows, weights.data(), {}}, .block = block}));
    std::vector<uint16_t> result(values.size());
    ExpectCudaSuccess(cudaMemcpy2D(result.data(), kChannels * kValueBytes, out.data(), kPitch * kValueBytes,
                                   kChannels * kValueBytes, kRows, cudaMemcpyDeviceToHost));
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t c = 0; c < kChannels; ++c) {
        ASSERT_EQ(FromBits(DType::kFloat16, result[static_cast<size_t>(row * kChannels + c)]),
                  value_of(kRows - 1 - row))
            << "row " << row << " channel " << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ImplicitGemmFuzzTest, FactorDTypes(), DTypeName);

}  // namespace
}  // namespace voxserve::kernels::implicit_gemm_fuzz_cuda_test
