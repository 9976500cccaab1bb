// Compares the columns that the GPU decodes from the bytes of point clouds with those of a naive decoder on the host.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/points/decode_points.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::decode_points_cuda_test {
namespace {

using support::Device;
using support::DeviceArray;

int SizeOfValue(PointFieldType type) {
  switch (type) {
    case PointFieldType::kInt8:
    case PointFieldType::kUint8:
      return 1;
    case PointFieldType::kInt16:
    case PointFieldType::kUint16:
    case PointFieldType::kFloat16:
      return 2;
    case PointFieldType::kInt32:
    case PointFieldType::kUint32:
    case PointFieldType::kFloat32:
      return 4;
    case PointFieldType::kFloat64:
      break;
  }
  return 8;
}

template <typename T>
T As(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));  // requires a little-endian machine
  return value;
}

double NaiveFloat16(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024, exponent - 25);
}

// Returns the value that a field has before its scale and shift. A double holds every value of every field type.
double NaiveRaw(PointFieldType type, const char* from, bool is_bigendian) {
  const int size = SizeOfValue(type);
  uint64_t bits = 0;
  for (int i = 0; i < size; ++i) {
    const int byte = is_bigendian ? size - 1 - i : i;
    bits |= static_cast<uint64_t>(static_cast<uint8_t>(from[byte])) << 8 * i;
  }
  switch (type) {
    case PointFieldType::kInt8:
      return As<int8_t>(bits);
    case PointFieldType::kUint8:
      return As<uint8_t>(bits);
    case PointFieldType::kInt16:
      return As<int16_t>(bits);
    case PointFieldType::kUint16:
      return As<uint16_t>(bits);
    case PointFieldType::kInt32:
      return As<int32_t>(bits);
    case PointFieldType::kUint32:
      return As<uint32_t>(bits);
    case PointFieldType::kFloat32:
      return static_cast<double>(As<float>(bits));
    case PointFieldType::kFloat64:
      return As<double>(bits);
    case PointFieldType::kFloat16:
      return NaiveFloat16(As<uint16_t>(bits));
  }
  return 0;
}

float NaiveColumn(const DecodePointsParams& params, const PointColumn& column, const char* point) {
  float value = column.default_value;
  if (column.has_field) {
    double wide = NaiveRaw(column.type, point + column.offset, params.is_bigendian);
    if (column.field_scale != 1.0 || column.field_shift != 0.0) {
      const volatile double scaled = wide * column.field_scale;  // volatile: rounds, so the sum cannot be fused
      wide = scaled + column.field_shift;
    }
    constexpr double kLargest = std::numeric_limits<float>::max();
    if (std::isfinite(wide)) wide = std::clamp(wide, -kLargest, kLargest);
    value = static_cast<float>(wide);
  }
  if (column.scale == 1.0F && column.shift == 0.0F) return value;
  const volatile float scaled = value * column.scale;
  return scaled + column.shift;
}

// Returns one coordinate of a point after the placement's transform, computed from row `axis` of the matrix. `volatile`
// rounds each product and each sum to float32, so that the compiler cannot fuse them.
float NaivePlaced(const DecodePointsParams& params, int32_t axis, const char* point) {
  const float* const row = params.placement.transform + axis * 4;
  volatile float sum = 0;
  for (int i = 0; i < 3; ++i) {
    const volatile float product =
        row[i] * NaiveColumn(params, params.columns[params.placement.axis_columns[i]], point);
    sum = i == 0 ? product : sum + product;
  }
  return sum + row[3];
}

float NaiveValue(const DecodePointsParams& params, const PointColumn& column, const char* point) {
  if (!params.placement.is_moved || column.axis < 0) return NaiveColumn(params, column, point);
  PointColumn moved = column;
  moved.has_field = false;
  moved.default_value = NaivePlaced(params, column.axis, point);
  return NaiveColumn(params, moved, point);
}

// Expects that the GPU decodes `bytes` to the naive decoder's values, bit for bit except for NaNs. On the GPU,
// `misalignment` other bytes precede the cloud. params.bytes is ignored.
void ExpectNaive(DecodePointsParams params, const std::vector<char>& bytes, size_t misalignment = 0) {
  const uint64_t width = params.width == 0 ? static_cast<uint64_t>(params.num_points) : params.width;
  const uint64_t row_step = params.row_step == 0 ? width * params.point_step : params.row_step;
  std::vector<char> moved(misalignment, '\x7F');
  moved.insert(moved.end(), bytes.begin(), bytes.end());
  const DeviceArray<char> device_bytes(Device::kCuda, moved);
  const auto num_columns = static_cast<size_t>(params.num_columns);
  const DeviceArray<float> points(Device::kCuda, static_cast<size_t>(params.num_points) * num_columns);
  const DeviceArray<uint8_t> is_valid(Device::kCuda, static_cast<size_t>(params.num_points));
  params.bytes = device_bytes.data() + misalignment;
  params.points = points.data();
  params.is_valid = is_valid.data();
  if constexpr (kHasCuda) support::ExpectCudaSuccess(cuda::DecodePoints({&params, 1}, support::TestStream()));
  const std::vector<float> made = points.ToHost();
  const std::vector<uint8_t> made_valid = is_valid.ToHost();
  for (int64_t point = 0; point < params.num_points; ++point) {
    const auto p = static_cast<uint64_t>(point);
    const char* from = bytes.data() + p / width * row_step + p % width * params.point_step;
    bool all_finite = true;
    for (size_t c = 0; c < num_columns; ++c) {
      const float expected = NaiveValue(params, params.columns[c], from);
      const float value = made[p * num_columns + c];
      all_finite = all_finite && std::isfinite(expected);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << "point " << point << " column " << c;
      } else {
        ASSERT_EQ(std::memcmp(&value, &expected, sizeof(value)), 0)
            << "point " << point << " column " << c << ": " << value << ", not " << expected;
      }
    }
    ASSERT_EQ(made_valid[p], all_finite ? 1 : 0) << "point " << point;
  }
}

std::vector<char> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(DecodePointsTest, FloatsAsTheyAre) {
  SKIP_WITHOUT(Device::kCuda);
  for (const int64_t num_points : {1, 255, 256, 257, 5000}) {
    for (const int32_t num_columns : {1, 4, 5, 16}) {
      std::vector<float> values(static_cast<size_t>(num_points * num_columns));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37F - 100.0F;
      values[values.size() / 2] = NAN;
      values[values.size() / 3] = -INFINITY;
      values[values.size() / 4] = std::numeric_limits<float>::max();
      values[values.size() / 5] = 1e-40F;  // subnormal
      std::vector<char> bytes(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      DecodePointsParams params{
          .num_points = num_points, .point_step = static_cast<uint32_t>(num_columns) * 4, .num_columns = num_columns};
      for (int32_t c = 0; c < num_columns; ++c) {
        // The columns may have any order.
        params.columns[c] = {.has_field = true, .offset = static_cast<uint32_t>((c * 3 + 1) % num_columns) * 4};
      }
      for (const size_t misalignment : {size_t{0}, size_t{1}, size_t{4}}) ExpectNaive(params, bytes, misalignment);
    }
  }
}

TEST(DecodePointsTest, EveryTypeOrderAndScaleAtAnyOffset) {
  SKIP_WITHOUT(Device::kCuda);
  constexpr int64_t kPoints = 1000;
  uint32_t seed = 1;
  for (int type = 1; type <= 9; ++type) {
    for (const bool is_bigendian : {false, true}) {
      for (const uint32_t offset : {0U, 1U, 2U, 8U}) {
        for (const uint32_t point_step : {16U, 17U, 19U}) {
          SCOPED_TRACE("type " + std::to_string(type) + (is_bigendian ? ", big-endian" : "") + ", offset " +
                       std::to_string(offset) + ", step " + std::to_string(point_step));
          DecodePointsParams params{
              .num_points = kPoints, .point_step = point_step, .is_bigendian = is_bigendian, .num_columns = 6};
          const PointColumn plain = {.has_field = true, .type = static_cast<PointFieldType>(type), .offset = offset};
          for (int c = 0; c < 4; ++c) params.columns[c] = plain;
          params.columns[1].field_scale = 0.001;
          params.columns[1].field_shift = -0.7;
          params.columns[2].scale = 1.0F / 255.0F;
          params.columns[2].shift = 0.3F;
          params.columns[3].field_scale = 1e200;  // beyond float32, so it is clamped
          params.columns[3].scale = 0.5F;
          params.columns[4].default_value = 2.5F;
          params.columns[5] = {.default_value = 2.5F, .scale = 3.1F, .shift = 0.1F};
          ExpectNaive(params, RandomBytes(kPoints * point_step, seed++));
        }
      }
    }
  }
}

TEST(DecodePointsTest, EveryFloat16) {
  SKIP_WITHOUT(Device::kCuda);
  std::vector<char> bytes(2 << 16);
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) std::memcpy(bytes.data() + bits * 2, &bits, 2);
  DecodePointsParams params{.num_points = 1 << 16, .point_step = 2, .num_columns = 1};
  params.columns[0] = {.has_field = true, .type = PointFieldType::kFloat16};
  ExpectNaive(params, bytes);
}

TEST(DecodePointsTest, DoublesBeyondFloat32) {
  SKIP_WITHOUT(Device::kCuda);
  const std::vector<double> values = {1e300,  -1e300, INFINITY, -INFINITY,  NAN,     3.4028235677973366e38,
                                      3.5e38, 1e-46,  -1e-40,   0.1,        -0.0,    16777217.0,
                                      1e-320, 5e-324, 1.0,      123456.789, 0x1p128, -0x1.fffffefp127};
  std::vector<char> bytes(values.size() * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  DecodePointsParams params{.num_points = static_cast<int64_t>(values.size()), .point_step = 8, .num_columns = 1};
  params.columns[0] = {.has_field = true, .type = PointFieldType::kFloat64};
  ExpectNaive(params, bytes);
}

TEST(DecodePointsTest, RowsWithPadding) {
  SKIP_WITHOUT(Device::kCuda);
  for (const uint64_t padding : {0, 3, 16}) {
    for (const uint64_t width : {1, 7, 100}) {
      constexpr uint64_t kRows = 9;
      constexpr uint32_t kStep = 12;
      const uint64_t row_step = width * kStep + padding;
      DecodePointsParams params{.num_points = static_cast<int64_t>(kRows * width),
                                .width = width,
                                .point_step = kStep,
                                .row_step = row_step,
                                .num_columns = 3};
      for (uint32_t c = 0; c < 3; ++c) params.columns[c] = {.has_field = true, .offset = c * 4};
      // The last row has no padding.
      ExpectNaive(params, RandomBytes(kRows * row_step - padding, static_cast<uint32_t>(width + padding)));
    }
  }
}

// The transform moves x, y and z, whose columns stand in several orders and have several types. The other columns read
// the moved axes again, another field, or no field.
TEST(DecodePointsTest, MovedPoints) {
  SKIP_WITHOUT(Device::kCuda);
  const float transform[12] = {0.36F, -0.8F, 0.48F,  12.5F,    0.8F,  0.6000001F,
                               1e-4F, -3.7F, -0.48F, 0.38413F, 0.64F, 0.01F};
  uint32_t seed = 100;
  for (const PointFieldType type : {PointFieldType::kFloat32, PointFieldType::kInt16, PointFieldType::kFloat16}) {
    for (const int64_t num_points : {1, 256, 1001}) {
      for (const int32_t first : {0, 1, 2}) {
        SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", axes from " + std::to_string(first));
        constexpr uint32_t kStep = 17;
        DecodePointsParams params{.num_points = num_points, .point_step = kStep, .num_columns = 8};
        params.placement.is_moved = true;
        std::copy(std::begin(transform), std::end(transform), params.placement.transform);
        for (int32_t axis = 0; axis < 3; ++axis) {
          const int32_t column = (axis + first) % 3;
          params.placement.axis_columns[axis] = column;
          params.columns[column] = {
              .has_field = true, .type = type, .offset = static_cast<uint32_t>(axis) * 4, .axis = axis};
          params.columns[column + 3] = params.columns[column];
          params.columns[column + 3].scale = 0.1F;
          params.columns[column + 3].shift = -1.3F;
          if (type == PointFieldType::kInt16) {
            params.columns[column].field_scale = params.columns[column + 3].field_scale = 0.01;
          }
        }
        params.columns[6] = {.has_field = true, .type = type, .offset = 12};
        params.columns[7] = {.default_value = 0.2F, .scale = 2.0F, .shift = 0.3F};
        ExpectNaive(params, RandomBytes(static_cast<size_t>(num_points) * kStep, seed++));
      }
    }
  }
}

TEST(DecodePointsTest, MovedPointsThatLeaveFloat32AreInvalid) {
  SKIP_WITHOUT(Device::kCuda);
  const std::vector<float> xyz = {3e38F, 3e38F, 0, 1, 2, 3, NAN, 0, 0, 0, INFINITY, 0, 3e38F, -3e38F, 0};
  std::vector<char> bytes(xyz.size() * sizeof(float));
  std::memcpy(bytes.data(), xyz.data(), bytes.size());
  DecodePointsParams params{.num_points = 5, .point_step = 12, .num_columns = 3};
  params.placement.is_moved = true;
  params.placement.transform[0] = params.placement.transform[1] = 1;  // x' = x + y; y' = z' = 0
  for (int32_t axis = 0; axis < 3; ++axis) {
    params.columns[axis] = {.has_field = true, .offset = static_cast<uint32_t>(axis) * 4, .axis = axis};
  }
  ExpectNaive(params, bytes);
}

// The kernels of the clouds run beside each other, and write to neighbouring rows.
TEST(DecodePointsTest, SeveralCloudsAtOnce) {
  SKIP_WITHOUT(Device::kCuda);
  if constexpr (kHasCuda) {
    constexpr int kColumns = 4;
    std::mt19937 random(7);
    std::uniform_real_distribution<float> unit(-1, 1);
    for (int repetition = 0; repetition < 20; ++repetition) {
      std::vector<float> sent;
      for (int i = 0; i < kColumns * (300 + 1 + 70'000 + 513 + 20'000); ++i) sent.push_back(unit(random));
      const DeviceArray<float> bytes(Device::kCuda, sent);
      const DeviceArray<float> points(Device::kCuda, sent.size());
      const DeviceArray<uint8_t> is_valid(Device::kCuda, sent.size() / kColumns);
      std::vector<DecodePointsParams> clouds;
      int64_t first = 0;
      for (const int64_t num_points : {300, 0, 1, 70'000, 513, 20'000}) {
        DecodePointsParams& cloud = clouds.emplace_back(
            DecodePointsParams{.num_points = num_points,
                               .bytes = reinterpret_cast<const char*>(bytes.data() + first * kColumns),
                               .point_step = kColumns * sizeof(float),
                               .num_columns = kColumns,
                               .points = points.data() + first * kColumns,
                               .is_valid = is_valid.data() + first});
        for (uint32_t c = 0; c < kColumns; ++c) cloud.columns[c] = {.has_field = true, .offset = c * 4};
        first += num_points;
      }
      support::ExpectCudaSuccess(cuda::DecodePoints(clouds, support::TestStream()));
      ASSERT_EQ(points.ToHost(), sent);
      ASSERT_EQ(is_valid.ToHost(), std::vector<uint8_t>(sent.size() / kColumns, 1));
    }
  }
}

TEST(DecodePointsTest, PlacementWithoutItsAxesIsRefused) {
  SKIP_WITHOUT(Device::kCuda);
  if constexpr (kHasCuda) {
    DecodePointsParams params{.num_points = 1, .num_columns = 2};
    params.placement.is_moved = true;
    EXPECT_NE(cuda::DecodePoints({&params, 1}, support::TestStream()), cudaError_t{});
    params.num_columns = 3;
    params.placement.axis_columns[1] = -1;
    EXPECT_NE(cuda::DecodePoints({&params, 1}, support::TestStream()), cudaError_t{});
  }
}

TEST(DecodePointsTest, NoPointsAndTooManyColumns) {
  SKIP_WITHOUT(Device::kCuda);
  ExpectNaive({.num_columns = 4}, {});
  if constexpr (kHasCuda) {
    const DecodePointsParams params{.num_points = 1, .num_columns = kMaxPointColumns + 1};
    EXPECT_NE(cuda::DecodePoints({&params, 1}, support::TestStream()), cudaError_t{});
    EXPECT_EQ(cuda::DecodePoints({}, support::TestStream()), cudaError_t{});
  }
}

}  // namespace
}  // namespace voxserve::kernels::decode_points_cuda_test
