// Compares pooling over a rulebook with its definition: the maximum, average or sum of the list of values that each
// output row reads. Runs on every device, in every dtype.

#include "kernels/rows/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::pool_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr PoolReduce kReduces[] = {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum};

// A rulebook in the form that a device reads.
struct DeviceRulebook {
  DeviceRulebook(Device device, const Rulebook& made)
      : view(made.View()), pitch(made.num_out_rows + 3), neighbours(device, Table(made, pitch)) {}

  static std::vector<int32_t> Table(const Rulebook& made, int64_t pitch) {
    const RulebookView view = made.View();
    std::vector<int32_t> table(static_cast<size_t>(view.num_offsets * pitch), -1);
    for (int32_t k = 0; k < view.num_offsets; ++k) {
      for (int64_t p = view.offset_begin[k]; p < view.offset_begin[k + 1]; ++p) {
        table[static_cast<size_t>(k * pitch + view.out_rows[p])] = view.in_rows[p];
      }
    }
    return table;
  }

  RulebookView view;
  int64_t pitch;
  DeviceArray<int32_t> neighbours;
};

// Returns the rulebook in which output row `row` reads input row in_row_of(k, row) at offset k, or none if that is -1.
template <typename InRowOf>
Rulebook MakeRulebook(int32_t num_offsets, int64_t num_in, int64_t num_out, const InRowOf& in_row_of) {
  Rulebook made{.num_out_rows = num_out, .num_in_rows = num_in, .offset_begin = {0}};
  const int64_t num_tiles = (num_out + kRulebookTileRows - 1) / kRulebookTileRows;
  made.tile_begin.resize(static_cast<size_t>((num_tiles + 1) * num_offsets));
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int64_t row = 0; row <= num_out; ++row) {
      if (row % kRulebookTileRows == 0 || row == num_out) {
        const int64_t tile = (row + kRulebookTileRows - 1) / kRulebookTileRows;
        made.tile_begin[static_cast<size_t>(tile * num_offsets + k)] = static_cast<int64_t>(made.out_rows.size());
      }
      const int32_t in_row = row < num_out ? in_row_of(k, row) : -1;
      if (in_row < 0) continue;
      made.in_rows.push_back(in_row);
      made.out_rows.push_back(static_cast<int32_t>(row));
    }
    made.offset_begin.push_back(static_cast<int64_t>(made.in_rows.size()));
  }
  return made;
}

// Returns what a pool stores, with every operation rounded to float32 and in ascending order of offsets.
Matrix Pooled(const Rulebook& made, PoolReduce reduce, const Matrix& in, DType out_dtype) {
  Matrix out(made.num_out_rows, in.channels, {}, nullptr);
  std::vector<int32_t> num_pairs(static_cast<size_t>(made.num_out_rows));
  for (float& value : out.values) value = 0;
  for (size_t p = 0; p < made.in_rows.size(); ++p) {
    const int32_t row = made.out_rows[p];
    const bool is_first = num_pairs[static_cast<size_t>(row)]++ == 0;
    for (int64_t c = 0; c < in.channels; ++c) {
      const float value = in.at(made.in_rows[p], c), before = out.at(row, c);
      out.at(row, c) = is_first ? value : reduce == PoolReduce::kMax ? LargerOrNan(before, value) : before + value;
    }
  }
  for (int64_t row = 0; row < out.rows; ++row) {
    const auto count = static_cast<float>(std::max(num_pairs[static_cast<size_t>(row)], 1));
    for (int64_t c = 0; c < out.channels; ++c) {
      if (reduce == PoolReduce::kAverage) out.at(row, c) /= count;
      out.at(row, c) = Rounded(out_dtype, out.at(row, c));
    }
  }
  return out;
}

// Expects the same bits, but any NaN equals any other NaN.
void ExpectSame(const Matrix& out, const Matrix& expected) {
  for (int64_t row = 0; row < expected.rows; ++row) {
    for (int64_t c = 0; c < expected.channels; ++c) {
      const float value = out.at(row, c), wanted = expected.at(row, c);
      ASSERT_TRUE(std::isnan(wanted) ? std::isnan(value)
                                     : std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(wanted))
          << "row " << row << " of " << expected.rows << ", channel " << c << " of " << expected.channels << ": "
          << value << " instead of " << wanted;
    }
  }
}

// num_rows: the number of output rows in device memory, for CUDA; null: all rows of `out`.
void RunPool(Device device, const DeviceRulebook& rulebook, PoolReduce reduce, const DeviceMatrix& in,
             const DeviceMatrix& out, const float* scale = nullptr, const Epilogue& epilogue = {},
             const int64_t* num_rows = nullptr) {
  if (device == Device::kCpu) {
    ThreadPool pool(3);
    cpu::Pool({.rulebook = rulebook.view,
               .reduce = reduce,
               .in = in.View(),
               .out = out.View(),
               .scale = scale,
               .epilogue = epilogue},
              pool);
    return;
  }
  if constexpr (kHasCuda) {
    Rows out_rows = out.View();
    out_rows.num_rows = num_rows;
    ExpectCudaSuccess(cuda::Pool({.neighbours = {.num_offsets = rulebook.view.num_offsets,
                                                 .rows = rulebook.neighbours.data(),
                                                 .pitch = rulebook.pitch},
                                  .reduce = reduce,
                                  .in = in.View(),
                                  .out = out_rows,
                                  .scale = scale,
                                  .epilogue = epilogue},
                                 TestStream()));
  }
}

class PoolTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam().device); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }
};

TEST_P(PoolTest, EqualsTheNaiveLoop) {
  Random random(1);
  for (const int64_t rows : {0, 1, 63, 64, 65, 300}) {
    for (const int32_t channels : {1, 3, 8, 12, 40}) {
      // Rows of 12 channels have 8 bytes after their last 16; with four more columns, 16-bit rows are aligned.
      const Margins margins = channels == 12
                                  ? Margins{.after = 4}
                                  : random.OneOf(std::vector<Margins>{{}, {.before = 8, .after = 8}, {.before = 1}});
      const Rulebook made =
          RandomRulebook(random.OneOf(std::vector<int32_t>{5, 8, 19}), rows + rows / 3, rows, 0.6, random);
      const DeviceRulebook rulebook(device(), made);
      const Matrix in(made.num_in_rows, channels, margins, &random, dtype());
      const DeviceMatrix device_in(device(), dtype(), in);
      std::vector<std::vector<int32_t>> read(static_cast<size_t>(rows));  // the input rows of every output row
      for (size_t p = 0; p < made.in_rows.size(); ++p) {
        read[static_cast<size_t>(made.out_rows[p])].push_back(made.in_rows[p]);
      }
      for (const PoolReduce reduce : kReduces) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          const DeviceMatrix device_out(device(), out_dtype, Matrix(rows, channels, margins, nullptr));
          RunPool(device(), rulebook, reduce, device_in, device_out);
          const Matrix out = device_out.ToHost();
          EXPECT_TRUE(out.MarginsAreUntouched());
          for (int64_t row = 0; row < rows; ++row) {
            for (int32_t c = 0; c < channels; ++c) {
              std::vector<double> values;
              for (const int32_t i : read[static_cast<size_t>(row)]) values.push_back(in.at(i, c));
              const double sum = std::accumulate(values.begin(), values.end(), 0.0);
              const double count = static_cast<double>(std::max<size_t>(values.size(), 1));
              const double expected = reduce == PoolReduce::kSum       ? sum
                                      : reduce == PoolReduce::kAverage ? sum / count
                                      : values.empty()                 ? 0
                                                       : *std::max_element(values.begin(), values.end());
              ASSERT_NEAR(out.at(row, c), expected, reduce == PoolReduce::kMax ? 0 : Tolerance(dtype(), count))
                  << "reduce " << static_cast<int>(reduce) << ", row " << row << " of " << rows << ", channel " << c;
            }
          }
        }
      }
    }
  }
}

// The values are those of a pool without an epilogue, scaled, with bias and residual added, and activated.
TEST_P(PoolTest, AddsAnEpilogue) {
  Random random(2);
  for (const int32_t channels : {1, 8, 12, 40, 252}) {
    const Rulebook made = RandomRulebook(8, 90, 70, 0.4, random);
    const DeviceRulebook rulebook(device(), made);
    const Matrix in(made.num_in_rows, channels, {}, &random, dtype());
    const Matrix residual(made.num_out_rows, channels, random.OneOf(std::vector<Margins>{{}, {.before = 8}}), &random,
                          dtype());
    const DeviceMatrix device_in(device(), dtype(), in), device_residual(device(), dtype(), residual);
    const std::vector<float> scale = random.Floats(channels), bias = random.Floats(channels);
    const DeviceArray<float> device_scale(device(), scale), device_bias(device(), bias);
    for (const PoolReduce reduce : kReduces) {
      const DeviceMatrix plain(device(), DType::kFloat32, Matrix(made.num_out_rows, channels, {}, nullptr));
      RunPool(device(), rulebook, reduce, device_in, plain);
      const Matrix pooled = plain.ToHost();
      for (const int parts : {1, 2, 4, 8, 11, 15}) {  // scale, bias, residual, activation
        for (const DType out_dtype : OutDTypes(dtype())) {
          const Activation activation = parts > 8 ? ActivationFunction::kGelu : ActivationFunction::kRelu;
          Epilogue epilogue;
          if ((parts & 2) != 0) epilogue.bias = device_bias.data();
          if ((parts & 4) != 0) epilogue.residual = device_residual.View();
          if ((parts & 8) != 0) epilogue.activation = activation;
          const DeviceMatrix device_out(device(), out_dtype, Matrix(made.num_out_rows, channels, {}, nullptr));
          RunPool(device(), rulebook, reduce, device_in, device_out, (parts & 1) != 0 ? device_scale.data() : nullptr,
                  epilogue);
          const Matrix out = device_out.ToHost();
          for (int64_t row = 0; row < made.num_out_rows; ++row) {
            for (int32_t c = 0; c < channels; ++c) {
              const auto i = static_cast<size_t>(c);
              float expected = pooled.at(row, c);
              if ((parts & 1) != 0) expected *= scale[i];
              if ((parts & 2) != 0) expected += bias[i];
              if ((parts & 4) != 0) expected += residual.at(row, c);
              if ((parts & 8) != 0) expected = Activate(activation, expected);
              ASSERT_NEAR(out.at(row, c), expected, Tolerance(dtype(), 1 + std::fabs(expected)))
                  << "reduce " << static_cast<int>(reduce) << ", parts " << parts << ", row " << row << ", channel "
                  << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(PoolTest, RowsWithoutPairsAreZeroAndNanIsKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  // Row 0 reads inputs 0 and 1, row 1 reads nothing, row 2 reads inputs 1 and 2.
  const Rulebook made{.num_out_rows = 3,
                      .num_in_rows = 3,
                      .offset_begin = {0, 2, 4},
                      .in_rows = {0, 1, 1, 2},
                      .out_rows = {0, 2, 0, 2},
                      .tile_begin = {0, 2, 2, 4}};
  const DeviceRulebook rulebook(device(), made);
  Matrix in(3, 2, {}, nullptr);
  in.values = {nan, -inf, 1, -inf, nan, 2};
  const DeviceMatrix device_in(device(), dtype(), in);
  const DeviceMatrix device_out(device(), dtype(), Matrix(3, 2, {}, nullptr));
  RunPool(device(), rulebook, PoolReduce::kMax, device_in, device_out);
  const Matrix out = device_out.ToHost();
  EXPECT_TRUE(std::isnan(out.at(0, 0)));
  EXPECT_EQ(out.at(0, 1), -inf);
  EXPECT_EQ(out.at(1, 0), 0);
  EXPECT_EQ(out.at(1, 1), 0);
  EXPECT_TRUE(std::isnan(out.at(2, 0)));
  EXPECT_EQ(out.at(2, 1), 2);
}

// Rows read no input, all offsets, the last offset alone, or some offsets. 301 channels are single values, and more of
// them than a block has threads.
TEST_P(PoolTest, RowsReadAnyOffsets) {
  Random random(3);
  for (const int32_t num_offsets : {0, 1, 7, 8, 9, 27}) {
    constexpr int64_t kNumIn = 90, kNumOut = 203;
    const Rulebook made = MakeRulebook(num_offsets, kNumIn, kNumOut, [&](int32_t k, int64_t row) {
      const bool reads = row % 5 == 0   ? false
                         : row % 5 == 1 ? true
                         : row % 5 == 2 ? k == num_offsets - 1
                                        : random.Chance(0.2);
      return reads ? static_cast<int32_t>((row * 7 + k * 3) % kNumIn) : -1;
    });
    const DeviceRulebook rulebook(device(), made);
    for (const int32_t channels : {4, 36, 72, 252, 301}) {
      const Matrix in(kNumIn, channels, {}, &random, dtype());
      const DeviceMatrix device_in(device(), dtype(), in);
      for (const PoolReduce reduce : kReduces) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          SCOPED_TRACE(testing::Message() << num_offsets << " offsets, reduce " << static_cast<int>(reduce));
          const DeviceMatrix out(device(), out_dtype, Matrix(kNumOut, channels, {}, nullptr));
          RunPool(device(), rulebook, reduce, device_in, out);
          ExpectSame(out.ToHost(), Pooled(made, reduce, in, out_dtype));
        }
      }
    }
  }
}

// Unpooling and pooling of more rows than the blocks of a launch take at once.
TEST_P(PoolTest, PoolsManyRows) {
  Random random(4);
  constexpr int64_t kNumIn = 20000, kNumOut = 70001;
  for (const bool is_unpooling : {true, false}) {
    const Rulebook made = MakeRulebook(8, kNumIn, kNumOut, [&](int32_t k, int64_t row) {
      const bool reads = is_unpooling ? k == row * 5 % 8 : (row + k) % 3 == 0;
      return reads ? static_cast<int32_t>((row + 11 * k) % kNumIn) : -1;
    });
    const DeviceRulebook rulebook(device(), made);
    for (const int32_t channels : {8, 36}) {
      const Matrix in(kNumIn, channels, {}, &random, dtype());
      const DeviceMatrix device_in(device(), dtype(), in);
      const DeviceMatrix out(device(), dtype(), Matrix(kNumOut, channels, {}, nullptr));
      RunPool(device(), rulebook, PoolReduce::kSum, device_in, out);
      ExpectSame(out.ToHost(), Pooled(made, PoolReduce::kSum, in, dtype()));
    }
  }
}

// More chunks of a row than a block has threads, where chunks are 16 bytes.
TEST_P(PoolTest, PoolsVeryWideRows) {
  Random random(5);
  constexpr int32_t kChannels = 4104;
  const Rulebook made = RandomRulebook(8, 20, 17, 0.4, random);
  const DeviceRulebook rulebook(device(), made);
  const Matrix in(made.num_in_rows, kChannels, {}, &random, dtype());
  const DeviceMatrix device_in(device(), dtype(), in);
  const DeviceMatrix out(device(), dtype(), Matrix(made.num_out_rows, kChannels, {}, nullptr));
  RunPool(device(), rulebook, PoolReduce::kMax, device_in, out);
  ExpectSame(out.ToHost(), Pooled(made, PoolReduce::kMax, in, dtype()));
}

// A maximum is NaN wherever the NaN stands in the row's list; the first of 0 and -0 stays.
TEST_P(PoolTest, MaximumKeepsNanAndTheFirstZero) {
  constexpr int32_t kNumOffsets = 19;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Every row reads an input at every offset. Input values are 0 and -0 in turns, but the one at offset r of row r is
  // NaN in channel 0.
  const Rulebook made = MakeRulebook(kNumOffsets, kNumOffsets * kNumOffsets, kNumOffsets, [&](int32_t k, int64_t row) {
    return static_cast<int32_t>(row * kNumOffsets + k);
  });
  const DeviceRulebook rulebook(device(), made);
  Matrix in(made.num_in_rows, 8, {}, nullptr);
  for (int64_t i = 0; i < in.rows; ++i) {
    for (int64_t c = 0; c < in.channels; ++c) in.at(i, c) = (i + c) % 2 == 0 ? 0.0f : -0.0f;
    if (i % kNumOffsets == i / kNumOffsets) in.at(i, 0) = nan;
  }
  const DeviceMatrix device_in(device(), dtype(), in);
  const DeviceMatrix device_out(device(), dtype(), Matrix(made.num_out_rows, 8, {}, nullptr));
  RunPool(device(), rulebook, PoolReduce::kMax, device_in, device_out);
  const Matrix out = device_out.ToHost();
  for (int64_t row = 0; row < out.rows; ++row) EXPECT_TRUE(std::isnan(out.at(row, 0))) << "row " << row;
  ExpectSame(out, Pooled(made, PoolReduce::kMax, in, dtype()));
}

// Rows from the number on that only the device knows are not written, with and without an epilogue.
TEST_P(PoolTest, LeavesRowsBeyondTheirNumber) {
  if (device() == Device::kCpu) GTEST_SKIP() << "the CPU knows the number of rows";
  Random random(6);
  constexpr int64_t kCapacity = 400;
  for (const int64_t num_rows : {0, 1, 33, 399, 400, 1000}) {
    const int64_t written = std::min(num_rows, kCapacity);
    const Rulebook made = RandomRulebook(8, 300, kCapacity, 0.3, random);
    const DeviceRulebook rulebook(device(), made);
    const DeviceArray<int64_t> count(device(), std::vector<int64_t>{num_rows});
    for (const int32_t channels : {36, 72}) {
      const Matrix in(made.num_in_rows, channels, {}, &random, dtype());
      const DeviceMatrix device_in(device(), dtype(), in);
      const DeviceArray<float> scale(device(), std::vector<float>(static_cast<size_t>(channels), 1.0f));
      for (const bool has_scale : {false, true}) {
        const DeviceMatrix device_out(device(), dtype(), Matrix(kCapacity, channels, {}, nullptr));
        RunPool(device(), rulebook, PoolReduce::kMax, device_in, device_out, has_scale ? scale.data() : nullptr, {},
                count.data());
        const Matrix out = device_out.ToHost();
        Matrix expected = Pooled(made, PoolReduce::kMax, in, dtype());
        for (int64_t row = written; row < kCapacity; ++row) {
          for (int64_t c = 0; c < channels; ++c) expected.at(row, c) = kUntouched;
        }
        ExpectSame(out, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, PoolTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::pool_test
