// Compares products whose first columns are rotated in pairs (kernels/conv/pair_rotation.h) with naive loops in double.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "tests/kernels/conv/implicit_gemm/implicit_gemm_testing.h"

namespace voxserve::kernels::rotation_cuda_test {
namespace {

using support::ExpectCudaSuccess;

class RotationTest : public ImplicitGemmTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, RotationTest, testing::Values(DType::kFloat16, DType::kBfloat16), DTypeName);

// A product of which num_heads heads are rotated; further_columns behind them are not.
struct Case {
  int64_t num_rows;
  int32_t in_channels, head_pairs, num_heads, further_columns;
  bool has_bias = true;
  int64_t bias_begin = 0;  // number of floats before the bias, which changes its alignment
  Margins in_margins = {}, out_margins = {}, angle_margins = {};
  int64_t spare_rows = 0;

  int32_t RotatedColumns() const { return 2 * head_pairs * num_heads; }
  int32_t OutChannels() const { return RotatedColumns() + further_columns; }
};

// Returns a table of sines and cosines of random angles, as RotaryAngles makes it.
Matrix RandomAngles(const Case& c, Random& random) {
  Matrix angles(c.num_rows, AngleTableChannels(c.head_pairs), c.angle_margins, nullptr);
  std::uniform_real_distribution<double> uniform(-3.2, 3.2);
  for (int64_t row = 0; row < c.num_rows; ++row) {
    for (int64_t pair = 0; pair < c.head_pairs + kRepeatedAngles; ++pair) {
      const double t = uniform(random.engine());
      const int64_t first = pair - c.head_pairs;
      const bool is_repeated = first >= 0;
      angles.at(row, 2 * pair) =
          is_repeated ? angles.at(row, 2 * (first % c.head_pairs)) : static_cast<float>(std::sin(t));
      angles.at(row, 2 * pair + 1) =
          is_repeated ? angles.at(row, 2 * (first % c.head_pairs) + 1) : static_cast<float>(std::cos(t));
    }
  }
  return angles;
}

struct Operands {
  Matrix in, angles;
  std::vector<float> weights, bias;

  Operands(const Case& c, DType dtype, Random& random)
      : in(c.num_rows, c.in_channels, c.in_margins, &random, dtype),
        angles(RandomAngles(c, random)),
        weights(random.Floats(int64_t{c.in_channels} * c.OutChannels(), dtype)),
        bias(random.Floats(c.OutChannels())) {}
};

Expected NaiveProduct(const Case& c, const Operands& operands) {
  const int32_t columns = c.OutChannels();
  Expected expected(c.num_rows, columns);
  for (int64_t row = 0; row < c.num_rows; ++row) {
    const auto term = [&](int64_t channel, int64_t column) {
      return double{operands.in.at(row, channel)} * operands.weights[static_cast<size_t>(channel * columns + column)];
    };
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t other = column ^ 1;
      const bool is_rotated = column < c.RotatedColumns();
      const int64_t pair = column / 2 % c.head_pairs;
      const double sine = is_rotated ? operands.angles.at(row, 2 * pair) : 0;
      const double cosine = is_rotated ? operands.angles.at(row, 2 * pair + 1) : 1;
      const double of_other = column % 2 == 0 ? -sine : sine;
      for (int64_t channel = 0; channel < c.in_channels; ++channel) {
        expected.Add(row, column, cosine * term(channel, column));
        if (is_rotated) expected.Add(row, column, of_other * term(channel, other));
      }
      if (!c.has_bias) continue;
      expected.Add(row, column, cosine * operands.bias[static_cast<size_t>(column)]);
      if (is_rotated) expected.Add(row, column, of_other * operands.bias[static_cast<size_t>(other)]);
    }
  }
  return expected;
}

// Returns the default block and all that rotate.
std::vector<ConvBlock> RotatingBlocks(DType dtype, int32_t out_channels) {
  std::vector<ConvBlock> blocks = AllBlocks(dtype, out_channels);
  std::erase_if(blocks, [](const ConvBlock& block) {
    return block.rows != 0 && !block.uses_mma_sync && (block.columns != 128 || block.split_k != 1);
  });
  return blocks;
}

// Runs a case with every block that rotates. Blocks that split sums alike and use the same instructions must give the
// same bytes, and so must the rows from the second on, alone.
void Check(const Case& c, DType dtype, Random& random) {
  SCOPED_TRACE(testing::Message() << c.num_rows << " rows, " << c.in_channels << " channels to " << c.num_heads
                                  << " heads of " << c.head_pairs << " pairs and " << c.further_columns
                                  << " columns, bias " << c.has_bias << " from " << c.bias_begin << ", margins "
                                  << c.out_margins.before << "+" << c.out_margins.after << ", spare rows "
                                  << c.spare_rows);
  const Operands operands(c, dtype, random);
  const Expected expected = NaiveProduct(c, operands);
  std::vector<float> bias = operands.bias;
  bias.insert(bias.begin(), static_cast<size_t>(c.bias_begin), std::numeric_limits<float>::quiet_NaN());
  const DeviceMatrix in(Device::kCuda, dtype, operands.in), angles(Device::kCuda, DType::kFloat32, operands.angles);
  const DeviceValues weights = PackedWeights(1, c.in_channels, c.OutChannels(), dtype, operands.weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  const DeviceArray<int64_t> num_rows(Device::kCuda, std::vector<int64_t>{c.num_rows});
  const int64_t capacity = c.num_rows + c.spare_rows;
  // Split sums need the tiles form's counters.
  const DeviceArray<int32_t> counters(Device::kCuda,
                                      std::vector<int32_t>(static_cast<size_t>(NumTileCounters(capacity)), 0));
  const Matrix before = OutBefore(c.num_rows, capacity, c.OutChannels(), c.out_margins);

  const auto run = [&](const ConvBlock& block, int64_t first_row, const Rows& out) {
    const int64_t rows = capacity - first_row;
    TilesView tiles{.num_offsets = 1, .counters = counters.data(), .out_capacity = rows};
    if (first_row == 0) tiles.num_out = num_rows.data();
    ConstRows in_rows = in.View(), angle_rows = angles.View();
    in_rows.data = static_cast<const char*>(in_rows.data) + first_row * in_rows.pitch_bytes();
    angle_rows.data = static_cast<const char*>(angle_rows.data) + first_row * angle_rows.pitch_bytes();
    ExpectCudaSuccess(RunImplicitGemm(
        {.tiles = tiles,
         .operands = {in_rows, out, weights.data(), {.bias = c.has_bias ? device_bias.data(c.bias_begin) : nullptr}},
         .block = block,
         .rotation = {.angles = angle_rows, .head_pairs = c.head_pairs, .num_columns = c.RotatedColumns()}}));
  };
  std::map<std::pair<int32_t, bool>, std::vector<uint8_t>> bytes_of;
  for (const ConvBlock& block : RotatingBlocks(dtype, c.OutChannels())) {
    SCOPED_TRACE(testing::PrintToString(block));
    const DeviceMatrix out(Device::kCuda, dtype, before);
    run(block, 0, out.View());
    const Matrix result = out.ToHost();
    for (size_t i = 0; i < expected.values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / c.OutChannels(), column = static_cast<int64_t>(i) % c.OutChannels();
      ASSERT_NEAR(result.at(row, column), expected.values[i], GemmTolerance(dtype, expected.magnitudes[i]))
          << "row " << row << ", column " << column;
    }
    ExpectUntouched(result, c.num_rows);
    if (testing::Test::HasFatalFailure()) return;
    if (block.rows != 0) {
      const auto of = bytes_of.try_emplace({block.split_k, block.uses_mma_sync}, out.Bytes()).first;
      ASSERT_EQ(out.Bytes(), of->second) << "blocks differ that split sums alike";
    }
    if (c.spare_rows > 0 || c.num_rows < 2) continue;
    const DeviceMatrix alone(Device::kCuda, dtype, OutBefore(c.num_rows - 1, c.num_rows - 1, c.OutChannels(), {}));
    run(block, 1, alone.View());
    const Matrix rows = alone.ToHost();
    for (int64_t row = 0; row + 1 < c.num_rows; ++row) {
      for (int64_t column = 0; column < c.OutChannels(); ++column) {
        ASSERT_EQ(rows.at(row, column), result.at(row + 1, column)) << "row " << row << ", column " << column;
      }
    }
  }
}

// Heads of LitePT (9 pairs), others whose pairs begin anywhere in a thread's four, and one that fills a row. Behind the
// rotated columns lie as many as values have, none, or a number that fills no vectors.
TEST_P(RotationTest, EqualsTheNaiveLoop) {
  Random random(71);
  for (const auto& [in_channels, head_pairs, num_heads, further_columns] :
       std::vector<std::array<int32_t, 4>>{{36, 9, 4, 36},
                                           {252, 9, 28, 252},
                                           {72, 9, 8, 72},
                                           {16, 3, 1, 3},
                                           {16, 1, 1, 0},
                                           {24, 1, 3, 300},
                                           {64, 2, 5, 12},
                                           {40, 11, 5, 7},
                                           {32, 128, 1, 0},
                                           {33, 6, 11, 1},
                                           {64, 16, 8, 128},
                                           {8, 4, 4, 32}}) {
    Check({.num_rows = 150,
           .in_channels = in_channels,
           .head_pairs = head_pairs,
           .num_heads = num_heads,
           .further_columns = further_columns},
          GetParam(), random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RotationTest, RowsAroundATile) {
  Random random(72);
  for (const int64_t num_rows : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 700}) {
    for (const int64_t spare_rows : {0, 1, 300}) {
      if (num_rows + spare_rows == 0) continue;
      Check({.num_rows = num_rows,
             .in_channels = 36,
             .head_pairs = 9,
             .num_heads = 4,
             .further_columns = 36,
             .spare_rows = spare_rows},
            GetParam(), random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RotationTest, EveryAlignment) {
  Random random(73);
  for (const Margins& margins : {Margins{}, Margins{.before = 8, .after = 8}, Margins{.before = 1, .after = 2}}) {
    for (const bool has_bias : {false, true}) {
      for (const int64_t bias_begin : {0, 1}) {
        Check({.num_rows = 70,
               .in_channels = 40,
               .head_pairs = 9,
               .num_heads = 4,
               .further_columns = 40,
               .has_bias = has_bias,
               .bias_begin = bias_begin,
               .in_margins = margins,
               .out_margins = margins,
               .angle_margins = {.before = 2, .after = 4}},
              GetParam(), random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Columns that are not rotated keep sums that are not finite.
TEST_P(RotationTest, OtherColumnsKeepInfinities) {
  Random random(74);
  const Case c{.num_rows = 20, .in_channels = 16, .head_pairs = 3, .num_heads = 1, .further_columns = 10};
  const Operands operands(c, GetParam(), random);
  std::vector<float> bias(static_cast<size_t>(c.OutChannels()), 0);
  bias[7] = std::numeric_limits<float>::infinity();  // column 6 is the other of its pair
  const DeviceMatrix in(Device::kCuda, GetParam(), operands.in),
      angles(Device::kCuda, DType::kFloat32, operands.angles);
  const DeviceValues weights = PackedWeights(1, c.in_channels, c.OutChannels(), GetParam(), operands.weights);
  const DeviceValues device_bias(Device::kCuda, DType::kFloat32, bias);
  const DeviceMatrix out(Device::kCuda, GetParam(), OutBefore(c.num_rows, c.num_rows, c.OutChannels(), {}));
  ExpectCudaSuccess(
      RunImplicitGemm({.tiles = {.num_offsets = 1, .out_capacity = c.num_rows},
                       .operands = {in.View(), out.View(), weights.data(), {.bias = device_bias.data()}},
                       .rotation = {.angles = angles.View(), .head_pairs = 3, .num_columns = c.RotatedColumns()}}));
  const Matrix result = out.ToHost();
  for (int64_t row = 0; row < c.num_rows; ++row) {
    for (int64_t column = 0; column < c.OutChannels(); ++column) {
      EXPECT_EQ(std::isfinite(result.at(row, column)), column != 7) << row << ", " << column;
    }
  }
}

TEST_P(RotationTest, RefusesWhatItCannotRotate) {
  Random random(75);
  const Case c{.num_rows = 20, .in_channels = 16, .head_pairs = 3, .num_heads = 2, .further_columns = 8};
  const Operands operands(c, GetParam(), random);
  const DeviceMatrix in(Device::kCuda, GetParam(), operands.in),
      angles(Device::kCuda, DType::kFloat32, operands.angles);
  const DeviceValues weights = PackedWeights(1, c.in_channels, c.OutChannels(), GetParam(), operands.weights);
  const Matrix before(c.num_rows, c.OutChannels(), {}, nullptr);
  const DeviceMatrix out(Device::kCuda, GetParam(), before), wide(Device::kCuda, DType::kFloat32, before);
  const DeviceArray<uint8_t> labels(Device::kCuda, static_cast<size_t>(c.num_rows));
  const ImplicitGemmParams good{
      .tiles = {.num_offsets = 1, .out_capacity = c.num_rows},
      .operands = {in.View(), out.View(), weights.data(), {}},
      .rotation = {.angles = angles.View(), .head_pairs = c.head_pairs, .num_columns = c.RotatedColumns()}};
  EXPECT_EQ(RunImplicitGemm(good), cudaSuccess);
  const auto expect_refused = [&](const char* what, const auto& change) {
    ImplicitGemmParams params = good;
    change(params);
    EXPECT_EQ(RunImplicitGemm(params), cudaErrorInvalidValue) << what;
  };
  expect_refused("an activation", [](auto& p) { p.operands.epilogue.activation = ActivationFunction::kRelu; });
  expect_refused("a residual", [&](auto& p) { p.operands.epilogue.residual = out.View(); });
  expect_refused("float32 results", [&](auto& p) { p.operands.out = wide.View(); });
  expect_refused("labels", [&](auto& p) { p.labels = Rows::Packed(labels.data(), DType::kUint8, c.num_rows, 1); });
  expect_refused("half a pair", [](auto& p) { p.rotation.num_columns = 7; });
  expect_refused("a table of other heads", [](auto& p) { p.rotation.head_pairs = 4; });
  expect_refused("angles of 16 bits", [](auto& p) { p.rotation.angles.dtype = DType::kFloat16; });
  expect_refused("rows of an odd pitch", [](auto& p) { p.rotation.angles.pitch += 1; });
  expect_refused("a block that cannot rotate", [](auto& p) { p.block = {.rows = 64, .columns = 32, .split_k = 1}; });
}

}  // namespace
}  // namespace voxserve::kernels::rotation_cuda_test
