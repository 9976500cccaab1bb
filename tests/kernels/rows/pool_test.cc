// Compares pooling over a rulebook with its definition: the maximum, average or sum of the list of values that each
// output row reads. Runs on every device, in every dtype.

#include "kernels/rows/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

void RunPool(Device device, const DeviceRulebook& rulebook, PoolReduce reduce, const DeviceMatrix& in,
             const DeviceMatrix& out, const float* scale = nullptr, const Epilogue& epilogue = {}) {
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
    ExpectCudaSuccess(cuda::Pool({.neighbours = {.num_offsets = rulebook.view.num_offsets,
                                                 .rows = rulebook.neighbours.data(),
                                                 .pitch = rulebook.pitch},
                                  .reduce = reduce,
                                  .in = in.View(),
                                  .out = out.View(),
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
  for (const int32_t channels : {1, 8, 12, 40}) {
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
      for (const int parts : {1, 2, 4, 8, 15}) {  // scale, bias, residual, activation
        for (const DType out_dtype : OutDTypes(dtype())) {
          const Activation activation = parts == 15 ? ActivationFunction::kGelu : ActivationFunction::kRelu;
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

INSTANTIATE_TEST_SUITE_P(Grounds, PoolTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::pool_test
