// Tests kernels that work row by row against naive loops in double: linear layers, scale and shift, argmax, and copies
// from voxels to points.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "kernels/rows/argmax.h"
#include "kernels/rows/scale_shift.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/kernels/rows/run_linear.h"

namespace voxserve::kernels::feature_kernels_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// The margins of a whole buffer, an aligned column slice, an unaligned one, and rows of 12 channels padded to 16.
const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}, {.after = 4}};

void RunScaleShift(Device device, const ScaleShiftParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::ScaleShift(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::ScaleShift(params, TestStream()));
}

void RunArgmax(Device device, const ArgmaxParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::Argmax(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::Argmax(params, TestStream()));
}

class FeatureKernelTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }
};

struct LinearCase {
  int64_t rows;
  int32_t in_channels, out_channels;
  Margins margins;
  DType out_dtype;
  bool in_place;  // the output is the residual
};

void CheckLinear(const Ground& ground, const LinearCase& c, const EpilogueCase& epilogue, Random& random) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.in_channels << " to " << c.out_channels << " channels as "
                                  << NameOf(c.out_dtype) << ", margin " << c.margins.before << ", bias "
                                  << epilogue.bias << ", residual " << epilogue.residual << ", ReLU " << epilogue.relu
                                  << ", in place " << c.in_place);
  const auto [device, dtype] = ground;
  const Matrix in(c.rows, c.in_channels, c.margins, &random, dtype);
  const Matrix residual(c.rows, c.out_channels, c.margins, &random, dtype);
  const std::vector<float> weights = random.Floats(int64_t{c.in_channels} * c.out_channels, dtype);
  const std::vector<float> bias = random.Floats(c.out_channels, c.out_dtype);
  Expected expected(c.rows, c.out_channels);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int32_t o = 0; o < c.out_channels; ++o) {
      for (int32_t i = 0; i < c.in_channels; ++i) {
        expected.Add(row, o, double{in.at(row, i)} * weights[static_cast<size_t>(i * c.out_channels + o)]);
      }
    }
  }
  expected.Finish(epilogue.bias ? &bias : nullptr, epilogue.residual ? &residual : nullptr, epilogue.relu);

  const DeviceMatrix device_in(device, dtype, in), device_residual(device, dtype, residual);
  const DeviceMatrix out(device, c.out_dtype,
                         c.in_place ? residual : Matrix(c.rows, c.out_channels, c.margins, nullptr));
  const DeviceValues device_weights(device, dtype, weights), device_bias(device, c.out_dtype, bias);
  RunLinear(device, {.in = device_in.View(),
                     .weights = device_weights.data(),
                     .out = out.View(),
                     .epilogue = epilogue.With(device_bias.data(), c.in_place ? out.View() : device_residual.View())});
  ExpectNear(out.ToHost(), expected, dtype);
}

TEST_P(FeatureKernelTest, LinearEqualsTheNaiveLoop) {
  Random random(1);
  const std::pair<int32_t, int32_t> channels[] = {{1, 1}, {3, 8},   {4, 32},  {7, 12},
                                                  {8, 3}, {12, 16}, {32, 96}, {96, 20}};
  for (const int64_t rows : {0, 1, 130}) {
    for (const auto& [in_channels, out_channels] : channels) {
      for (const Margins& margins : kMargins) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          for (const EpilogueCase& epilogue : EpilogueCases()) {
            LinearCase c{rows, in_channels, out_channels, margins, out_dtype, false};
            CheckLinear(GetParam(), c, epilogue, random);
            if (HasFatalFailure()) return;
            c.in_place = true;
            if (epilogue.residual && out_dtype == dtype()) CheckLinear(GetParam(), c, epilogue, random);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// The bits of a row do not depend on the rows around it, which may be another client's.
TEST(LinearCpuTest, ARowHasTheSameBitsWhereverItLies) {
  Random random(7);
  for (const int32_t channels : {1, 8, 24, 33, 64, 256}) {
    for (const int32_t out_channels : {1, 7, 16, 48, 65}) {
      SCOPED_TRACE(testing::Message() << channels << " to " << out_channels);
      constexpr int64_t kRows = 1300;
      Matrix in(kRows, channels, {}, &random), weights(channels, out_channels, {}, &random);
      const auto rows_from = [&](int64_t begin, int64_t end) {
        Matrix out(end - begin, out_channels, {}, nullptr);
        RunLinear(Device::kCpu,
                  {.in = ConstRows(in.View()).RowRange(begin, end), .weights = weights.data(), .out = out.View()});
        return out;
      };
      const Matrix all = rows_from(0, kRows);
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 100}, {3, 1027}, {1025, 1300}, {1299, 1300}}) {
        const Matrix some = rows_from(begin, end);
        for (int64_t row = 0; row < some.rows; ++row) {
          for (int64_t c = 0; c < out_channels; ++c) ASSERT_EQ(some.at(row, c), all.at(begin + row, c)) << begin + row;
        }
      }
    }
  }
}

TEST_P(FeatureKernelTest, LinearOfManyRows) {
  Random random(2);
  for (const int64_t rows : {1023, 1024, 2500}) {
    CheckLinear(GetParam(), {rows, 7, 12, {.after = 1}, dtype(), false}, {true, true, true}, random);
    CheckLinear(GetParam(), {rows, 32, 16, {.after = 8}, dtype(), false}, {true, true, true}, random);
  }
}

TEST_P(FeatureKernelTest, ScaleShiftScalesAddsAndActivatesInPlace) {
  const Margins margins{.after = 2};
  Matrix in(2, 3, margins, nullptr), residual(2, 3, {}, nullptr);
  for (int64_t i = 0; i < 6; ++i) in.at(i / 3, i % 3) = static_cast<float>(i) - 2;  // -2 -1 0 / 1 2 3
  residual.values = {0, 0, 0, 10, 20, 30};
  const DeviceMatrix values(device(), dtype(), in), added(device(), dtype(), residual);
  const DeviceValues scale(device(), DType::kFloat32, {2, -1, 0.5f}), bias(device(), DType::kFloat32, {1, 0, -1});
  RunScaleShift(device(),
                {.in = values.View(),
                 .scale = static_cast<const float*>(scale.data()),
                 .out = values.View(),
                 .epilogue = {.bias = bias.data(), .residual = added.View(), .activation = ActivationFunction::kRelu}});
  const float expected[] = {0, 1, 0, 13, 18, 30.5f};
  const Matrix out = values.ToHost();
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(out.at(i / 3, i % 3), expected[i]) << i;
  EXPECT_TRUE(out.MarginsAreUntouched());
}

TEST_P(FeatureKernelTest, ScaleShiftEqualsTheNaiveLoop) {
  Random random(3);
  for (const int64_t rows : {0, 1, 77}) {
    for (const int32_t channels : {1, 3, 4, 8, 12, 16, 96, 2056}) {  // the last is more than a block has threads for
      for (const DType out_dtype : OutDTypes(dtype())) {
        for (const EpilogueCase& c : EpilogueCases()) {
          const Margins margins = random.OneOf(kMargins);
          const bool has_scale = random.Chance(0.5);
          const Matrix in(rows, channels, margins, &random, dtype()), residual(rows, channels, {}, &random, dtype());
          const std::vector<float> scale = random.Floats(channels), bias = random.Floats(channels);
          Expected expected(rows, channels);
          for (int64_t row = 0; row < rows; ++row) {
            for (int32_t i = 0; i < channels; ++i) {
              expected.Add(row, i, double{in.at(row, i)} * (has_scale ? scale[static_cast<size_t>(i)] : 1));
            }
          }
          expected.Finish(c.bias ? &bias : nullptr, c.residual ? &residual : nullptr, c.relu);

          const DeviceMatrix device_in(device(), dtype(), in), device_residual(device(), dtype(), residual);
          const DeviceMatrix out(device(), out_dtype, Matrix(rows, channels, margins, nullptr));
          const DeviceValues device_scale(device(), DType::kFloat32, scale),
              device_bias(device(), DType::kFloat32, bias);
          RunScaleShift(device(), {.in = device_in.View(),
                                   .scale = has_scale ? static_cast<const float*>(device_scale.data()) : nullptr,
                                   .out = out.View(),
                                   .epilogue = c.With(device_bias.data(), device_residual.View())});
          ExpectNear(out.ToHost(), expected, dtype());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A plain copy rounds float32 to a narrower type, ties to even.
TEST_P(FeatureKernelTest, ScaleShiftCopiesFloatsToTheType) {
  Random random(4);
  for (const int64_t rows : {0, 1, 77}) {
    for (const int32_t channels : {1, 3, 4, 8, 40}) {
      const Margins margins = random.OneOf(kMargins);
      const Matrix in(rows, channels, margins, &random);
      const DeviceMatrix device_in(device(), DType::kFloat32, in);
      const DeviceMatrix device_out(device(), dtype(), Matrix(rows, channels, margins, nullptr));
      RunScaleShift(device(), {.in = device_in.View(), .out = device_out.View()});
      const Matrix out = device_out.ToHost();
      for (int64_t i = 0; i < rows * channels; ++i) {
        ASSERT_EQ(out.at(i / channels, i % channels), Rounded(dtype(), in.at(i / channels, i % channels))) << i;
      }
      EXPECT_TRUE(out.MarginsAreUntouched());
    }
  }
}

TEST_P(FeatureKernelTest, ArgmaxTiesGoToTheLowest) {
  const DeviceValues in(device(), dtype(), {1, 3, 3, 0, -2, -1, -1, -1, 0, 0, 0, 0});
  const DeviceArray<uint8_t> labels(device(), 3);
  RunArgmax(device(), {.in = Rows::Packed(in.data(), dtype(), 3, 4),
                       .labels = Rows::Packed(labels.data(), DType::kUint8, 3, 1),
                       .not_finite_label = 255});
  EXPECT_THAT(labels.ToHost(), testing::ElementsAre(1, 1, 0));
}

// One NaN or infinity, anywhere in a row, gives the row not_finite_label. Other rows keep their labels.
TEST_P(FeatureKernelTest, ArgmaxOfARowThatIsNotFiniteIsItsLabel) {
  for (const int32_t channels : {1, 2, 7, 8, 9, 40}) {
    const int64_t num_rows = 3 * channels + 1;
    for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()}) {
      Matrix values(num_rows, channels, {.before = 1, .after = 2}, nullptr);
      std::vector<uint16_t> expected(static_cast<size_t>(num_rows), 0);
      for (int32_t c = 0; c < channels; ++c) {
        values.at(3 * c + 1, c) = broken;
        expected[static_cast<size_t>(3 * c + 1)] = 60'000;
      }
      const DeviceMatrix in(device(), dtype(), values);
      const DeviceArray<uint16_t> labels(device(), static_cast<size_t>(num_rows));
      RunArgmax(device(), {.in = in.View(),
                           .labels = Rows::Packed(labels.data(), DType::kUint16, num_rows, 1),
                           .not_finite_label = 60'000});
      EXPECT_EQ(labels.ToHost(), expected) << channels << " channels, " << broken;
    }
  }
}

TEST_P(FeatureKernelTest, ArgmaxLabelsAbove255NeedTwoBytes) {
  std::vector<float> row(1000, 0.0f);
  row[777] = 1;
  const DeviceValues in(device(), dtype(), row);
  const DeviceArray<uint16_t> label(device(), 1);
  RunArgmax(device(), {.in = Rows::Packed(in.data(), dtype(), 1, 1000),
                       .labels = Rows::Packed(label.data(), DType::kUint16, 1, 1)});
  EXPECT_THAT(label.ToHost(), testing::ElementsAre(777));
}

TEST_P(FeatureKernelTest, ArgmaxEqualsTheNaiveLoop) {
  Random random(4);
  for (const int64_t rows : {0, 1, 333}) {
    for (const int32_t channels : {1, 2, 7, 8, 19, 40}) {
      Matrix values(rows, channels, {.before = 1, .after = 2}, &random, dtype());
      std::vector<uint8_t> expected(static_cast<size_t>(rows));
      for (int64_t row = 0; row < rows; ++row) {
        for (int32_t c = 1; c < channels; ++c) {
          uint8_t& best = expected[static_cast<size_t>(row)];
          if (values.at(row, c) > values.at(row, best)) best = static_cast<uint8_t>(c);
        }
      }
      const DeviceMatrix in(device(), dtype(), values);
      const DeviceArray<uint8_t> labels(device(), static_cast<size_t>(rows));
      RunArgmax(device(), {.in = in.View(), .labels = Rows::Packed(labels.data(), DType::kUint8, rows, 1)});
      EXPECT_EQ(labels.ToHost(), expected) << rows << " rows, " << channels << " channels";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grounds, FeatureKernelTest, AllGrounds(), GroundName);

}  // namespace
}  // namespace voxserve::kernels::feature_kernels_test
