// Compares rotated rows with their definition in double, on every device and for every pair of types.

#include "kernels/rows/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::rotary_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

// The positions of rows: sites in the order that a level has on the device, or a tensor.
struct Positions {
  std::vector<uint64_t> keys;           // empty: the tensor counts
  Matrix tensor = {0, 1, {}, nullptr};  // [rows, dimension]
  std::vector<float> values;            // [rows, dimension] what keys or tensor say
};

class RotaryTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  std::vector<DType> TypesOfResults() const {
    if (device() == Device::kCuda && dtype() == DType::kFloat32) {
      return {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
    }
    return OutDTypes(dtype());
  }

  Positions Sites(int64_t rows, int32_t dimension) {
    const CoordinateKey layout(dimension);
    Positions positions;
    for (int64_t row = 0; row < rows; ++row) {
      Axes site = {0, 0, 0, 0};
      for (int32_t axis = 0; axis < dimension; ++axis) {
        // Some sites are at the limits of a key: 130,943 in 3 dimensions.
        const bool is_far = random_.Chance(0.1);
        const int32_t most = is_far ? layout.max_coordinate() : 3000, least = is_far ? layout.min_coordinate() : 0;
        site[axis] = is_far ? (random_.Chance(0.5) ? most : least)
                            : std::uniform_int_distribution<int32_t>(least, most)(random_.engine());
        positions.values.push_back(static_cast<float>(site[axis]));
      }
      const uint64_t key = layout.Pack(static_cast<int32_t>(row % 5), site);
      positions.keys.push_back(device() == Device::kCuda ? ToMortonKey(layout, key) : key);
    }
    return positions;
  }

  // Returns float positions from fractions to tens of thousands, of both signs.
  Positions Floats(int64_t rows, int32_t dimension, DType dtype) {
    Positions positions{.tensor = Matrix(rows, dimension, random_.OneOf(kMargins), &random_)};
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t axis = 0; axis < dimension; ++axis) {
        float& value = positions.tensor.at(row, axis);
        value = Rounded(dtype, value * random_.OneOf(std::vector<float>{1, 300, 60000}));
        positions.values.push_back(value);
      }
    }
    return positions;
  }

  RotaryParams Params(int32_t dimension, int32_t num_heads, int64_t channels, float base) const {
    RotaryParams params{.dimension = dimension, .num_heads = num_heads};
    params.out.channels = static_cast<int32_t>(channels);
    SetRotaryFrequencies(base, &params);
    return params;
  }

  Matrix Rotate(RotaryParams params, const Positions& positions, DType positions_dtype, const Matrix& in,
                DType out_dtype, Margins margins) const {
    const DeviceArray<uint64_t> keys(device(), positions.keys);
    const DeviceMatrix tensor(device(), positions_dtype, positions.tensor);
    const DeviceMatrix device_in(device(), dtype(), in);
    const DeviceMatrix out(device(), out_dtype, Matrix(in.rows, in.channels, margins, nullptr));
    if (positions.keys.empty()) {
      params.positions = tensor.View();
    } else {
      params.keys = keys.data();
    }
    params.in = device_in.View();
    params.out = out.View();
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::Rotary(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::Rotary(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }

  void ExpectNaive(int64_t rows, int32_t dimension, int32_t num_heads, int32_t pairs, bool has_tensor) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << dimension << " axes, " << num_heads << " heads, " << pairs
                                    << " pairs an axis" << (has_tensor ? ", a tensor of positions" : ""));
    const int64_t channels = int64_t{num_heads} * dimension * pairs * 2;
    const DType positions_dtype = random_.Chance(0.5) ? DType::kFloat32 : dtype();
    const Positions positions = has_tensor ? Floats(rows, dimension, positions_dtype) : Sites(rows, dimension);
    const RotaryParams params = Params(dimension, num_heads, channels, random_.OneOf(std::vector<float>{10, 100, 1e4}));
    const Matrix in(rows, channels, random_.OneOf(kMargins), &random_, dtype());
    Expected expected(rows, channels);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t chunk = 0; chunk < num_heads * dimension; ++chunk) {
        for (int64_t j = 0; j < pairs; ++j) {
          // The angle is a product of two float32 numbers, rounded once; all else is exact.
          const float position = positions.values[static_cast<size_t>(row * dimension + chunk % dimension)];
          const double t = position * params.frequencies[j];
          const int64_t u = chunk * 2 * pairs + j, v = u + pairs;
          expected.Add(row, u, in.at(row, u) * std::cos(t));
          expected.Add(row, u, -in.at(row, v) * std::sin(t));
          expected.Add(row, v, in.at(row, v) * std::cos(t));
          expected.Add(row, v, in.at(row, u) * std::sin(t));
        }
      }
    }
    for (const DType out_dtype : TypesOfResults()) {
      ExpectNear(Rotate(params, positions, positions_dtype, in, out_dtype, random_.OneOf(kMargins)), expected,
                 out_dtype);
    }
  }

  Random random_{1};
};
INSTANTIATE_TEST_SUITE_P(Grounds, RotaryTest, AllGrounds(), GroundName);

TEST_P(RotaryTest, EqualsTheNaiveLoop) {
  for (const bool has_tensor : {false, true}) {
    for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
      for (const int32_t num_heads : {1, 2, 7}) {
        for (const int32_t pairs : {1, 3, 4, 11}) ExpectNaive(70, dimension, num_heads, pairs, has_tensor);
      }
    }
    ExpectNaive(0, 3, 2, 3, has_tensor);
    ExpectNaive(1, 3, 2, 3, has_tensor);
    ExpectNaive(2000, 3, 32, 3, has_tensor);  // LitePT: heads of 18 channels
    for (const int64_t rows : {2, 15, 16, 17, 33}) ExpectNaive(rows, 3, 14, 3, has_tensor);  // 16 rows a block
    ExpectNaive(700, 1, 1, 1, has_tensor);   // more rows a block than any other
    ExpectNaive(300, 2, 3, 64, has_tensor);  // the widest head
    ExpectNaive(300, 1, 1, 128, has_tensor);
  }
}

TEST_P(RotaryTest, FrequenciesFallFromOneByThePowersOfTheBase) {
  for (const float base : {10.0f, 100.0f, 0.5f}) {
    const RotaryParams params = Params(3, 4, 72, base);
    for (int j = 0; j < 3; ++j) EXPECT_FLOAT_EQ(params.frequencies[j], std::pow(double{base}, -j / 3.0));
    EXPECT_EQ(params.frequencies[0], 1.0f);
  }
}

TEST_P(RotaryTest, APositionThatIsNotFiniteMakesItsAxisNan) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Positions positions{.tensor = Matrix(3, 3, {}, &random_)};
    positions.tensor.at(1, 1) = bad;
    const Matrix in(3, 36, {}, &random_, dtype());
    const Matrix out = Rotate(Params(3, 2, 36, 10), positions, DType::kFloat32, in, dtype(), {});
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t c = 0; c < 36; ++c) {
        EXPECT_EQ(std::isnan(out.at(row, c)), row == 1 && c / 6 % 3 == 1) << row << ", " << c;
      }
    }
  }
}

// The dot product of two rotated rows does not change if both positions move by the same distance.
TEST_P(RotaryTest, DotProductsDependOnDifferencesOfPositions) {
  if (dtype() != DType::kFloat32) GTEST_SKIP() << "the products would be too coarse";
  const Matrix in(2, 18, {}, &random_);
  const auto dot = [&](float moved) {
    Positions positions{.tensor = Matrix(2, 3, {}, nullptr)};
    for (int64_t axis = 0; axis < 3; ++axis) {
      positions.tensor.at(0, axis) = moved;
      positions.tensor.at(1, axis) = moved + static_cast<float>(axis);
    }
    const Matrix out = Rotate(Params(3, 1, 18, 100), positions, DType::kFloat32, in, DType::kFloat32, {});
    double sum = 0;
    for (int64_t c = 0; c < 18; ++c) sum += double{out.at(0, c)} * out.at(1, c);
    return sum;
  };
  EXPECT_NEAR(dot(0), dot(1024), 1e-3);
  EXPECT_NEAR(dot(0), dot(-77), 1e-3);
}

}  // namespace
}  // namespace voxserve::kernels::rotary_test
