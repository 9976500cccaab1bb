// Compares voxels and their features, on every device, with results that tests/oracles/geometry_oracle.py stored.

#include "kernels/points/voxelize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/points/voxel_features.h"
#include "tests/kernels/points/device_voxels.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::kernels::voxelize_test {
namespace {

using fixtures::LargestCoordinates;
using fixtures::VoxelizeOn;
using fixtures::Voxels;
using support::Device;
using support::DeviceArray;
using ::testing::Each;
using ::testing::ElementsAre;

class VoxelizeTest : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, VoxelizeTest, support::AllDevices(), support::DeviceName);

// A stored case: the inputs, then the results. N points, D axes, B samples, V voxels.
struct VoxelCase {
  std::string name;
  VoxelizeParams params;  // its pointers are null
  int32_t max_voxels = 0;
  std::vector<float> points;         // [N, D]
  std::vector<int64_t> point_begin;  // [B + 1]
  std::vector<uint8_t> is_valid;     // [N]
  std::vector<float> features;       // [N, 3]

  std::vector<int8_t> code;          // [N] 0, or the code of a point without a voxel
  std::vector<uint64_t> keys;        // [V]
  std::vector<int32_t> members;      // points, voxel after voxel
  std::vector<int64_t> voxel_begin;  // [V + 1]
  std::vector<uint8_t> stays;        // [V] 1 for the voxels kept under a limit of max_voxels
  std::vector<float> mean;           // [V, 3]
  std::vector<float> mean_of_two;    // [V, 3] of at most the first two points

  // Returns the params with pointers to this case's inputs.
  VoxelizeParams Params() const {
    VoxelizeParams all = params;
    all.axes = ConstRows::Packed(points.data(), DType::kFloat32, all.num_points, params.dimension);
    all.point_begin = point_begin.data();
    all.is_valid = is_valid.data();
    return all;
  }
};

VoxelCase ReadCase(const std::map<std::string, support::NpyArray>& arrays, const std::string& name) {
  VoxelCase c;
  c.name = name;
  const int32_t* numbers = arrays.at(name + "_params").data<int32_t>();
  const float* floats = arrays.at(name + "_floats").data<float>();
  c.params.dimension = numbers[0];
  c.params.rounding = static_cast<VoxelRounding>(numbers[1]);
  c.params.origin = static_cast<VoxelOrigin>(numbers[2]);
  c.params.has_range = numbers[3] != 0;
  c.max_voxels = numbers[4];
  for (int axis = 0; axis < kMaxDimension; ++axis) {
    c.params.voxel_size[axis] = floats[axis];
    c.params.range_min[axis] = floats[kMaxDimension + axis];
    c.params.range_max[axis] = floats[2 * kMaxDimension + axis];
  }
  c.points = arrays.at(name + "_points").values<float>();
  c.point_begin = {0};
  for (const int64_t count : arrays.at(name + "_counts").values<int64_t>()) {
    c.point_begin.push_back(c.point_begin.back() + count);
  }
  c.params.num_points = c.point_begin.back();
  c.params.num_samples = static_cast<int32_t>(c.point_begin.size() - 1);
  c.is_valid = arrays.at(name + "_mask").values<uint8_t>();
  c.features = arrays.at(name + "_features").values<float>();
  c.code = arrays.at(name + "_code").values<int8_t>();
  c.members = arrays.at(name + "_members").values<int32_t>();
  c.voxel_begin = {0};
  for (const int32_t size : arrays.at(name + "_sizes").values<int32_t>()) {
    c.voxel_begin.push_back(c.voxel_begin.back() + size);
  }
  c.stays = arrays.at(name + "_stays").values<uint8_t>();
  c.mean = arrays.at(name + "_mean").values<float>();
  c.mean_of_two = arrays.at(name + "_mean2").values<float>();
  const CoordinateKey layout(c.params.dimension);
  const std::vector<int32_t> coords = arrays.at(name + "_coords").values<int32_t>();
  for (size_t at = 0; at < coords.size(); at += static_cast<size_t>(1 + c.params.dimension)) {
    Axes coordinate = {0, 0, 0, 0};
    std::copy_n(coords.begin() + static_cast<int64_t>(at) + 1, c.params.dimension, coordinate.begin());
    c.keys.push_back(layout.Pack(coords[at], coordinate));
  }
  return c;
}

const std::vector<VoxelCase>& AllVoxelCases() {
  static const std::vector<VoxelCase>* cases = [] {
    const auto arrays = support::ReadNpz(support::SourceDir() + "/tests/kernels/data/voxel_cases.npz");
    if (!arrays.ok()) {
      std::cerr << arrays.status() << std::endl;
      std::abort();
    }
    auto* read = new std::vector<VoxelCase>;
    for (const auto& [name, array] : *arrays) {
      if (name.ends_with("_params")) read->push_back(ReadCase(*arrays, name.substr(0, name.size() - 7)));
    }
    return read;
  }();
  return *cases;
}

TEST_P(VoxelizeTest, AgreesWithTheDefinition) {
  SKIP_WITHOUT(GetParam());
  for (const VoxelCase& c : AllVoxelCases()) {
    SCOPED_TRACE(c.name);
    const CoordinateKey layout(c.params.dimension);
    for (const int num_threads : {1, 3}) {
      const Voxels buffers = VoxelizeOn(GetParam(), c.Params(), num_threads);
      EXPECT_EQ(buffers.keys, c.keys);
      EXPECT_EQ(buffers.sorted_points, c.members);
      EXPECT_EQ(buffers.voxel_begin, c.voxel_begin);

      std::vector<int32_t> point_to_voxel(c.code.begin(), c.code.end());
      for (size_t voxel = 0; voxel < c.keys.size(); ++voxel) {
        for (int64_t i = c.voxel_begin[voxel]; i < c.voxel_begin[voxel + 1]; ++i) {
          point_to_voxel[static_cast<size_t>(c.members[static_cast<size_t>(i)])] = static_cast<int32_t>(voxel);
        }
      }
      EXPECT_EQ(buffers.point_to_voxel, point_to_voxel);

      for (int32_t sample = 0; sample < c.params.num_samples; ++sample) {
        const auto s = static_cast<size_t>(sample);
        const auto of_sample = [&](int8_t code) {
          return std::count(c.code.begin() + c.point_begin[s], c.code.begin() + c.point_begin[s + 1], code);
        };
        EXPECT_EQ(buffers.num_invalid[s], of_sample(kInvalidPoint));
        EXPECT_EQ(buffers.num_out_of_range[s], of_sample(kOutOfRangePoint));
        EXPECT_EQ(
            buffers.sample_begin[s + 1] - buffers.sample_begin[s],
            std::count_if(c.keys.begin(), c.keys.end(), [&](uint64_t key) { return layout.Sample(key) == sample; }));
      }
      EXPECT_EQ(buffers.sample_begin.front(), 0);
    }
  }
}

TEST_P(VoxelizeTest, SortsByTheExpectedBitsOfEachAxis) {
  if (GetParam() == Device::kCpu) GTEST_SKIP() << "the CPU expects nothing of coordinates";
  SKIP_WITHOUT(GetParam());
  int num_uneven = 0;
  for (const VoxelCase& c : AllVoxelCases()) {
    SCOPED_TRACE(c.name);
    if (c.params.origin != VoxelOrigin::kMinimum || c.keys.empty()) continue;
    const std::vector<int64_t> most = LargestCoordinates(c.params.dimension, c.keys);
    VoxelizeParams params = c.Params();
    for (size_t axis = 0; axis < most.size(); ++axis) {
      ASSERT_TRUE(FitsAxisBits(most[axis], AxisBitsFor(most[axis])));
      ASSERT_FALSE(FitsAxisBits(most[axis], AxisBitsFor(most[axis]) - 1));
      params.axis_bits[axis] = AxisBitsFor(most[axis]);
    }
    num_uneven += params.axis_bits[0] != params.axis_bits[1] ? 1 : 0;
    const Voxels voxels = VoxelizeOn(GetParam(), params);
    EXPECT_EQ(voxels.keys, c.keys);
    EXPECT_EQ(voxels.sorted_points, c.members);
    EXPECT_EQ(voxels.voxel_begin, c.voxel_begin);
    EXPECT_EQ(voxels.max_coordinate, most);
    // With fewer bits the voxels are wrong, and max_coordinate says so.
    for (int32_t& bits : params.axis_bits) bits = 1;
    EXPECT_EQ(VoxelizeOn(GetParam(), params).max_coordinate, most);
  }
  EXPECT_GT(num_uneven, 0);
}

// In the last of two samples, the farthest voxel of three bits an axis has the highest key of all, but for that of a
// point without a voxel.
TEST_P(VoxelizeTest, TheHighestKeyIsNoPointWithoutAVoxel) {
  SKIP_WITHOUT(GetParam());
  const float none = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> points = {0, 0, 0, none, 0, 0, 6, 6, 6, 6, 6, 6, none, 0, 0, 0, 0, 0};
  const std::vector<int64_t> point_begin = {0, 3, 6};
  VoxelizeParams params;
  params.num_points = 6;
  params.num_samples = 2;
  params.axes = ConstRows::Packed(points.data(), DType::kFloat32, 6, 3);
  params.point_begin = point_begin.data();
  params.axis_bits = {AxisBitsFor(6), AxisBitsFor(6), AxisBitsFor(6)};
  ASSERT_EQ(params.axis_bits[0], 3);
  const Voxels voxels = VoxelizeOn(GetParam(), params);
  EXPECT_THAT(voxels.point_to_voxel, ElementsAre(0, kInvalidPoint, 1, 3, kInvalidPoint, 2));
  EXPECT_THAT(voxels.sample_begin, ElementsAre(0, 2, 4));
  EXPECT_THAT(voxels.num_invalid, ElementsAre(1, 1));
}

// Returns the float32 of a 16-bit float's bits.
float WidenFloat(DType dtype, uint16_t bits) {
  if (dtype == DType::kBfloat16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Returns the largest error with which this type holds a number of the magnitude of `value`.
float RoundingError(DType dtype, float value) {
  if (dtype == DType::kFloat32) return 0.0F;
  return 0x1p-24F + std::fabs(value) * (dtype == DType::kFloat16 ? 0x1p-11F : 0x1p-8F);
}

std::vector<DType> FeatureTypes(Device device) {
  if (device == Device::kCpu) return {DType::kFloat32};
  return {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
}

// Returns [num_voxels, out_pitch] as float32. The params' pointers are the device's, except for `out`.
std::vector<float> RunVoxelFeatures(Device device, VoxelFeaturesParams params) {
  const auto num_values = static_cast<size_t>(params.out.capacity * params.out.pitch);
  const DeviceArray<uint8_t> out(device, num_values * static_cast<size_t>(SizeOf(params.out.dtype)));
  params.out.data = out.data();
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::VoxelFeatures(params, pool);
  } else if constexpr (kHasCuda) {
    support::ExpectCudaSuccess(cuda::VoxelFeatures(params, support::TestStream()));
  }
  const std::vector<uint8_t> bytes = out.ToHost();
  std::vector<float> values(num_values);
  for (size_t i = 0; i < num_values; ++i) {
    if (params.out.dtype == DType::kFloat32) {
      std::memcpy(&values[i], bytes.data() + i * sizeof(float), sizeof(float));
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
      values[i] = WidenFloat(params.out.dtype, bits);
    }
  }
  return values;
}

TEST_P(VoxelizeTest, FeaturesAreTheFirstPointsOrTheMean) {
  SKIP_WITHOUT(GetParam());
  for (const VoxelCase& c : AllVoxelCases()) {
    SCOPED_TRACE(c.name);
    constexpr int32_t kChannels = 3;
    const DeviceArray<float> features(GetParam(), c.features);
    const DeviceArray<int32_t> members(GetParam(), c.members);
    const DeviceArray<int64_t> voxel_begin(GetParam(), c.voxel_begin);
    VoxelFeaturesParams params;
    const auto num_points = static_cast<int64_t>(c.features.size()) / kChannels;
    params.features = ConstRows::Packed(features.data(), DType::kFloat32, num_points, kChannels);
    params.out = {.channels = kChannels, .capacity = static_cast<int64_t>(c.keys.size())};
    params.sorted_points = members.data();
    params.voxel_begin = voxel_begin.data();
    for (const DType dtype : FeatureTypes(GetParam())) {
      SCOPED_TRACE(NameOf(dtype));
      params.out.dtype = dtype;
      for (const int64_t pitch : {5, 8}) {  // 8 values are whole vectors in every type
        params.out.pitch = pitch;
        const auto expect_rows = [&](const auto& expected, float tolerance) {
          const std::vector<float> out = RunVoxelFeatures(GetParam(), params);
          for (size_t voxel = 0; voxel < c.keys.size(); ++voxel) {
            const float* row = out.data() + voxel * static_cast<size_t>(pitch);
            for (size_t channel = 0; channel < kChannels; ++channel) {
              const float value = expected(voxel, channel);
              ASSERT_NEAR(row[channel], value, tolerance + RoundingError(dtype, value));
            }
            for (int64_t column = kChannels; column < pitch; ++column) ASSERT_EQ(row[column], 0.0F);
          }
        };
        params.reduce = VoxelReduce::kFirst;
        params.max_points_per_voxel = 0;
        expect_rows(
            [&](size_t voxel, size_t channel) {
              const auto first = static_cast<size_t>(c.members[static_cast<size_t>(c.voxel_begin[voxel])]);
              return c.features[first * kChannels + channel];
            },
            0.0F);
        params.reduce = VoxelReduce::kMean;
        expect_rows([&](size_t voxel, size_t channel) { return c.mean[voxel * kChannels + channel]; }, 1e-5F);
        params.max_points_per_voxel = 2;
        expect_rows([&](size_t voxel, size_t channel) { return c.mean_of_two[voxel * kChannels + channel]; }, 1e-6F);
      }
    }
  }
}

// Expects that exactly the case's voxels with a 1 in `stays` [V] remain, and that the others and their points are
// counted as dropped.
void ExpectWhatStays(const Voxels& buffers, const VoxelCase& c, const std::vector<uint8_t>& stays) {
  const auto num_samples = static_cast<size_t>(c.params.num_samples);
  const CoordinateKey layout(c.params.dimension);
  std::vector<uint64_t> keys;
  std::vector<int32_t> members, point_to_voxel(c.code.begin(), c.code.end());
  std::vector<int64_t> voxels_gone(num_samples, 0), points_gone(num_samples, 0), voxel_begin = {0};
  for (size_t voxel = 0; voxel < c.keys.size(); ++voxel) {
    const auto sample = static_cast<size_t>(layout.Sample(c.keys[voxel]));
    for (int64_t i = c.voxel_begin[voxel]; i < c.voxel_begin[voxel + 1]; ++i) {
      const int32_t point = c.members[static_cast<size_t>(i)];
      point_to_voxel[static_cast<size_t>(point)] =
          stays[voxel] != 0 ? static_cast<int32_t>(keys.size()) : kDroppedPoint;
      if (stays[voxel] != 0) members.push_back(point);
      points_gone[sample] += stays[voxel] == 0;
    }
    voxels_gone[sample] += stays[voxel] == 0;
    if (stays[voxel] == 0) continue;
    keys.push_back(c.keys[voxel]);
    voxel_begin.push_back(static_cast<int64_t>(members.size()));
  }
  EXPECT_EQ(buffers.keys, keys);
  EXPECT_EQ(buffers.sorted_points, members);
  EXPECT_EQ(buffers.voxel_begin, voxel_begin);
  EXPECT_EQ(buffers.point_to_voxel, point_to_voxel);
  EXPECT_EQ(buffers.num_dropped_voxels, voxels_gone);
  EXPECT_EQ(buffers.num_dropped_points, points_gone);
}

TEST_P(VoxelizeTest, TheLimitKeepsTheNearestVoxels) {
  SKIP_WITHOUT(GetParam());
  for (const VoxelCase& c : AllVoxelCases()) {
    SCOPED_TRACE(c.name);
    ExpectWhatStays(VoxelizeOn(GetParam(), c.Params(), 2, c.max_voxels), c, c.stays);
  }
}

// Returns [V] 1 for the first max_voxels voxels of each sample, in the order of their first points.
std::vector<uint8_t> FirstSeen(const VoxelCase& c, size_t max_voxels) {
  std::vector<size_t> voxel_of(c.code.size(), c.keys.size());
  for (size_t voxel = 0; voxel < c.keys.size(); ++voxel) {
    for (int64_t i = c.voxel_begin[voxel]; i < c.voxel_begin[voxel + 1]; ++i) {
      voxel_of[static_cast<size_t>(c.members[static_cast<size_t>(i)])] = voxel;
    }
  }
  std::vector<uint8_t> stays(c.keys.size(), 0);
  for (size_t sample = 0; sample + 1 < c.point_begin.size(); ++sample) {
    size_t taken = 0;
    for (auto point = static_cast<size_t>(c.point_begin[sample]);
         point < static_cast<size_t>(c.point_begin[sample + 1]); ++point) {
      if (c.code[point] != 0 || stays[voxel_of[point]] != 0 || taken == max_voxels) continue;
      stays[voxel_of[point]] = 1;
      ++taken;
    }
  }
  return stays;
}

TEST_P(VoxelizeTest, TheLimitKeepsTheVoxelsSeenFirst) {
  SKIP_WITHOUT(GetParam());
  bool differs = false;
  for (const VoxelCase& c : AllVoxelCases()) {
    SCOPED_TRACE(c.name);
    for (const int64_t max_voxels : {int64_t{0}, int64_t{1}, int64_t{c.max_voxels}, c.params.num_points}) {
      const std::vector<uint8_t> stays = FirstSeen(c, static_cast<size_t>(max_voxels));
      differs |= max_voxels == c.max_voxels && stays != c.stays;
      const Voxels buffers = VoxelizeOn(GetParam(), c.Params(), 2, max_voxels, VoxelOrder::kFirstSeen);
      ExpectWhatStays(buffers, c, stays);
    }
  }
  EXPECT_TRUE(differs) << "the cases tell the nearest voxels from the first";
}

TEST_P(VoxelizeTest, RowsMayBeWiderThanTheAxes) {
  SKIP_WITHOUT(GetParam());
  const std::vector<float> rows = {0.0F, 1.0F, 2.0F, NAN, 77.0F, 0.0F, 1.0F, 3.0F, NAN, 77.0F};
  const std::vector<int64_t> point_begin = {0, 2};
  VoxelizeParams params;
  params.num_points = 2;
  params.num_samples = 1;
  params.point_begin = point_begin.data();
  params.axes = ConstRows::Packed(rows.data(), DType::kFloat32, params.num_points, 5);
  const Voxels buffers = VoxelizeOn(GetParam(), params);
  const CoordinateKey layout(3);
  EXPECT_THAT(buffers.keys, ElementsAre(layout.Pack(0, {0, 0, 0, 0}), layout.Pack(0, {0, 0, 1, 0})));
  EXPECT_EQ(buffers.sample_origin[0], (Axes{0, 1, 2, 0}));
  EXPECT_THAT(buffers.num_invalid, Each(0));
}

TEST_P(VoxelizeTest, TheDivisionIsAFloat32Division) {
  SKIP_WITHOUT(GetParam());
  // The quotients are rounded to the nearest integer, and halves to the even one. Divided by 0.05f in float32, x, y and
  // z are 32.5, 3.5 and 15.4999..., which gives the voxel (32, 4, 15). Products with the float32 reciprocal would give
  // (33, 4, 16), and divisions in double (33, 3, 15).
  const std::vector<float> rows = {1.6250001F, 0.175F, 0.775F};
  const std::vector<int64_t> point_begin = {0, 1};
  VoxelizeParams params;
  params.origin = VoxelOrigin::kZero;
  params.num_points = 1;
  params.num_samples = 1;
  params.point_begin = point_begin.data();
  params.axes = ConstRows::Packed(rows.data(), DType::kFloat32, params.num_points, 3);
  for (float& size : params.voxel_size) size = 0.05F;
  const Voxels buffers = VoxelizeOn(GetParam(), params);
  EXPECT_EQ(CoordinateKey(3).Unpack(buffers.keys[0]), (Axes{32, 4, 15, 0}));
}

TEST(VoxelGridTest, IndexLimits) {
  EXPECT_EQ(VoxelIndexLimit(3, VoxelOrigin::kZero), 130943);
  EXPECT_EQ(VoxelIndexLimit(3, VoxelOrigin::kMinimum), 65471);
  EXPECT_EQ(VoxelIndexLimit(4, VoxelOrigin::kMinimum), 1983);
}

TEST(VoxelGridTest, GridShapeRoundsWhatFloat32CannotDivide) {
  // These are CenterPoint's nuScenes grids.
  VoxelizeParams params;
  const float size[3] = {0.075F, 0.075F, 0.2F}, low[3] = {-54.0F, -54.0F, -5.0F}, high[3] = {54.0F, 54.0F, 3.0F};
  for (int axis = 0; axis < 3; ++axis) {
    params.voxel_size[axis] = size[axis];
    params.range_min[axis] = low[axis];
    params.range_max[axis] = high[axis];
  }
  int64_t shape[kMaxDimension];
  GridShape(params, shape);
  EXPECT_THAT(shape, ElementsAre(1440, 1440, 40, 1));
}

TEST(VoxelGridTest, ExtentIsWhatIsKnownOfTheCoordinates) {
  VoxelizeParams params;
  EXPECT_THAT(VoxelExtent(params), Each(0));
  params.axis_bits = {11, 3, 0, 0};
  const Axes extent = VoxelExtent(params);
  for (const int axis : {0, 1}) {
    EXPECT_TRUE(FitsAxisBits(extent[axis] - 1, params.axis_bits[axis]));
    EXPECT_FALSE(FitsAxisBits(extent[axis], params.axis_bits[axis]));
  }
  EXPECT_EQ(extent[2], 0);
  params.origin = VoxelOrigin::kZero;
  EXPECT_THAT(VoxelExtent(params), Each(0)) << "coordinates may be below 0";
  params.origin = VoxelOrigin::kRange;
  for (const int axis : {0, 1, 2}) params.range_max[axis] = 5;
  EXPECT_THAT(VoxelExtent(params), ElementsAre(5, 5, 5, 0));
  params.range_max[0] = 1e15F;
  EXPECT_THAT(VoxelExtent(params), ElementsAre(0, 5, 5, 0)) << "beyond an int32";
}

// A GPU divides the work differently for voxels with many points. Sums are float32, in the order of the points, so the
// bytes are those of a plain loop.
TEST_P(VoxelizeTest, MeansOfManyPointsHaveTheBytesOfAPlainLoop) {
  SKIP_WITHOUT(GetParam());
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> uniform(-80, 80);
  const std::vector<int64_t> pillars = {3000, 1, 127, 128, 129, 5, 256, 257, 32, 33, 2};
  std::vector<int64_t> sparse(2000, 1);  // few points on average, and one voxel with many
  sparse[700] = 1500;
  for (const std::vector<int64_t>& counts : {pillars, sparse}) {
    const int64_t num_points = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    std::vector<int32_t> members(static_cast<size_t>(num_points));
    std::iota(members.begin(), members.end(), 0);
    std::shuffle(members.begin(), members.end(), engine);
    std::vector<int64_t> voxel_begin = {0};
    for (const int64_t count : counts) voxel_begin.push_back(voxel_begin.back() + count);
    for (const int32_t channels : {1, 5, 8, 11}) {
      std::vector<float> values(static_cast<size_t>(num_points * channels));
      for (float& value : values) value = uniform(engine);
      const DeviceArray<float> features(GetParam(), values);
      const DeviceArray<int32_t> device_members(GetParam(), members);
      const DeviceArray<int64_t> device_begin(GetParam(), voxel_begin);
      for (const int64_t pitch : {int64_t{channels}, int64_t{16}, int64_t{21}}) {
        for (const int64_t most : {0, 100, 3}) {
          SCOPED_TRACE(testing::Message() << counts.size() << " voxels, " << channels << " channels, pitch " << pitch
                                          << ", at most " << most << " points");
          const std::vector<float> out = RunVoxelFeatures(
              GetParam(),
              {.reduce = VoxelReduce::kMean,
               .max_points_per_voxel = most,
               .features = ConstRows::Packed(features.data(), DType::kFloat32, num_points, channels),
               .sorted_points = device_members.data(),
               .voxel_begin = device_begin.data(),
               .out = {.channels = channels, .pitch = pitch, .capacity = static_cast<int64_t>(counts.size())}});
          for (size_t voxel = 0; voxel < counts.size(); ++voxel) {
            const int64_t count = most > 0 ? std::min(most, counts[voxel]) : counts[voxel];
            for (int64_t c = 0; c < pitch; ++c) {
              float expected = 0;
              for (int64_t i = 0; c < channels && i < count; ++i) {
                const auto point = members[static_cast<size_t>(voxel_begin[voxel] + i)];
                const float value = values[static_cast<size_t>(point * channels + c)];
                expected = i == 0 ? value : expected + value;
              }
              if (count > 1) expected /= static_cast<float>(count);
              ASSERT_EQ(out[voxel * static_cast<size_t>(pitch) + static_cast<size_t>(c)], expected)
                  << "voxel " << voxel << ", column " << c;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::voxelize_test
