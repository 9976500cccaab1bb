// Compares CUDA's voxels with the CPU's, on clouds that use every path: many blocks and tiles, samples of any size,
// every kind of bad point, equal distances. voxelize_test.cc compares the CPU's voxels with their definition.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/points/device_voxels.h"

namespace voxserve::kernels::voxelize_clouds_cuda_test {
namespace {

using fixtures::LargestCoordinates;
using fixtures::VoxelizeOn;
using fixtures::Voxels;
using support::Device;

struct Cloud {
  std::vector<float> rows;  // [N, pitch]
  int32_t pitch = 0;
  std::vector<int64_t> point_begin = {0};
  std::vector<uint8_t> is_valid;

  // Each axis is normally distributed about 0 with the deviation `reach`. A share `bad` of the points has one axis that
  // is not finite or far away, and a share `bad` is marked as invalid.
  Cloud(const std::vector<int64_t>& counts, int32_t dimension, float reach, double bad, uint32_t seed)
      : pitch(dimension + 2) {
    std::mt19937 random(seed);
    std::normal_distribution<float> place(0.0F, reach);
    std::bernoulli_distribution is_bad(bad);
    const std::vector<float> bad_values = {NAN, INFINITY, -INFINITY, 1e9F, -1e9F, std::numeric_limits<float>::max()};
    for (const int64_t count : counts) point_begin.push_back(point_begin.back() + count);
    for (int64_t point = 0; point < point_begin.back(); ++point) {
      const auto first = rows.size();
      for (int32_t axis = 0; axis < dimension; ++axis) rows.push_back(place(random));
      rows.insert(rows.end(), {NAN, 7.0F});  // two columns that must be ignored
      if (is_bad(random)) rows[first + random() % static_cast<size_t>(dimension)] = bad_values[random() % 6];
      is_valid.push_back(is_bad(random) ? 0 : 1);
    }
  }

  void Describe(VoxelizeParams& params) const {
    params.num_points = point_begin.back();
    params.num_samples = static_cast<int32_t>(point_begin.size()) - 1;
    params.point_begin = point_begin.data();
    params.axes = ConstRows::Packed(rows.data(), DType::kFloat32, params.num_points, pitch);
    params.is_valid = is_valid.data();
  }
};

// params.num_points may be more than the points that there are.
void ExpectSame(const VoxelizeParams& params, std::optional<int64_t> max_voxels = std::nullopt,
                VoxelOrder order = VoxelOrder::kNearest) {
  VoxelizeParams on_cpu = params;
  on_cpu.num_points = params.point_begin[params.num_samples];
  const Voxels expected = VoxelizeOn(Device::kCpu, on_cpu, 2, max_voxels, order);
  const Voxels made = VoxelizeOn(Device::kCuda, params, 2, max_voxels, order);
  // EXPECT_EQ of the arrays would print millions of numbers.
  EXPECT_EQ(made.keys.size(), expected.keys.size());
  EXPECT_TRUE(made.keys == expected.keys);
  EXPECT_TRUE(made.point_to_voxel == expected.point_to_voxel);
  EXPECT_TRUE(made.sorted_points == expected.sorted_points);
  EXPECT_TRUE(made.voxel_begin == expected.voxel_begin);
  EXPECT_EQ(made.sample_begin, expected.sample_begin);
  EXPECT_EQ(made.num_invalid, expected.num_invalid);
  EXPECT_EQ(made.num_out_of_range, expected.num_out_of_range);
  EXPECT_EQ(made.sample_origin, expected.sample_origin);
  EXPECT_EQ(made.num_dropped_voxels, expected.num_dropped_voxels);
  EXPECT_EQ(made.num_dropped_points, expected.num_dropped_points);
  if (max_voxels.has_value()) return;
  EXPECT_EQ(made.max_coordinate, LargestCoordinates(params.dimension, expected.keys));
}

TEST(VoxelizeCloudsTest, EveryRuleInEveryDimension) {
  SKIP_WITHOUT(Device::kCuda);
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const Cloud cloud({0, 1500, 1, 0, 2999, 257, 0}, dimension, 3.0F, 0.05, static_cast<uint32_t>(dimension));
    for (const VoxelOrigin origin : {VoxelOrigin::kMinimum, VoxelOrigin::kRange, VoxelOrigin::kZero}) {
      for (const VoxelRounding rounding : {VoxelRounding::kHalfEven, VoxelRounding::kFloor}) {
        for (const bool has_range : {false, true}) {
          if (origin == VoxelOrigin::kRange && !has_range) continue;
          SCOPED_TRACE(std::to_string(dimension) + " axes, origin " + std::to_string(static_cast<int>(origin)) +
                       ", rounding " + std::to_string(static_cast<int>(rounding)) + (has_range ? ", range" : ""));
          VoxelizeParams params{.dimension = dimension, .rounding = rounding, .origin = origin, .has_range = has_range};
          for (int axis = 0; axis < dimension; ++axis) {
            params.voxel_size[axis] = 0.25F * static_cast<float>(axis + 1);
            params.range_min[axis] = -4.0F + static_cast<float>(axis);
            params.range_max[axis] = 4.1F;
          }
          cloud.Describe(params);
          ExpectSame(params);
          for (const int64_t max_voxels : {0, 1, 20, 100000}) {
            SCOPED_TRACE("at most " + std::to_string(max_voxels));
            ExpectSame(params, max_voxels);
            ExpectSame(params, max_voxels, VoxelOrder::kFirstSeen);
          }
        }
      }
    }
  }
}

// The places behind the last point hold numbers like those of points. They must change no voxel.
TEST(VoxelizeCloudsTest, MorePlacesThanPoints) {
  SKIP_WITHOUT(Device::kCuda);
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{5000}, {0, 255, 256, 0}, {1}, {0}, {0, 0, 0}, {125'000, 3}}) {
    for (const int64_t more : {1, 255, 256, 20'000}) {
      SCOPED_TRACE(std::to_string(counts.back()) + " points and " + std::to_string(more) + " places more");
      std::vector<int64_t> with_places = counts;
      with_places.back() += more;
      Cloud cloud(with_places, 3, 3.0F, 0.05, 9);
      cloud.point_begin.back() -= more;
      for (const VoxelOrigin origin : {VoxelOrigin::kMinimum, VoxelOrigin::kZero}) {
        VoxelizeParams params{.origin = origin, .voxel_size = {0.25F, 0.25F, 0.25F}};
        cloud.Describe(params);
        params.num_points += more;
        ExpectSame(params);
        ExpectSame(params, 20);
        ExpectSame(params, 20, VoxelOrder::kFirstSeen);
      }
    }
  }
}

TEST(VoxelizeCloudsTest, ACloudOfARealScansSize) {
  SKIP_WITHOUT(Device::kCuda);
  const Cloud cloud({125000}, 3, 15.0F, 0.001, 5);
  VoxelizeParams params;
  for (float& size : params.voxel_size) size = 0.05F;
  cloud.Describe(params);
  ExpectSame(params);
  ExpectSame(params, 60000);
  ExpectSame(params, 60000, VoxelOrder::kFirstSeen);
}

TEST(VoxelizeCloudsTest, MorePointsThanOneTileOfEveryRun) {
  SKIP_WITHOUT(Device::kCuda);
  const Cloud cloud({1'100'000, 3, 1'049'999}, 3, 6.0F, 0.01, 6);
  VoxelizeParams params;
  for (float& size : params.voxel_size) size = 0.1F;
  cloud.Describe(params);
  ExpectSame(params);
  ExpectSame(params, 50000);
}

TEST(VoxelizeCloudsTest, AsManySamplesAsThereMayBe) {
  SKIP_WITHOUT(Device::kCuda);
  std::vector<int64_t> counts(kMaxSamples);
  for (size_t s = 0; s < counts.size(); ++s) counts[s] = static_cast<int64_t>(s % 5);
  counts.back() = 3;
  const Cloud cloud(counts, 3, 1.0F, 0.2, 7);
  for (const VoxelOrigin origin : {VoxelOrigin::kMinimum, VoxelOrigin::kZero}) {
    VoxelizeParams params{.origin = origin};
    cloud.Describe(params);
    ExpectSame(params);
    ExpectSame(params, 2);
  }
}

TEST(VoxelizeCloudsTest, CoordinatesAtTheKeysLimits) {
  SKIP_WITHOUT(Device::kCuda);
  for (const VoxelOrigin origin : {VoxelOrigin::kMinimum, VoxelOrigin::kZero}) {
    for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
      const auto limit = static_cast<float>(VoxelIndexLimit(dimension, origin));
      Cloud cloud({0}, dimension, 1.0F, 0.0, 8);
      for (const float x : {limit, -limit, 0.0F, limit + 1.0F, -limit - 1.0F, std::nextafter(limit, 0.0F)}) {
        cloud.rows.insert(cloud.rows.end(), static_cast<size_t>(cloud.pitch), x);
        cloud.is_valid.push_back(1);
      }
      cloud.point_begin.back() = static_cast<int64_t>(cloud.is_valid.size());
      VoxelizeParams params{.dimension = dimension, .origin = origin};
      cloud.Describe(params);
      ExpectSame(params);
    }
  }
}

TEST(VoxelizeCloudsTest, NothingToVoxelize) {
  SKIP_WITHOUT(Device::kCuda);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{}, {0}, {0, 0, 0}, {700}, {2, 0, 300}}) {
    Cloud cloud(counts, 3, 1.0F, 0.0, 9);
    for (size_t point = 0; point < cloud.is_valid.size(); ++point) {
      cloud.is_valid[point] = point % 3 == 0 ? 0 : 1;
      if (point % 3 != 0) cloud.rows[point * static_cast<size_t>(cloud.pitch)] = point % 3 == 1 ? NAN : 1e9F;
    }
    VoxelizeParams params;
    cloud.Describe(params);
    ExpectSame(params);
    ExpectSame(params, 5);
  }
}

TEST(VoxelizeCloudsTest, WithoutAMask) {
  SKIP_WITHOUT(Device::kCuda);
  const Cloud cloud({300, 500}, 3, 2.0F, 0.1, 10);
  VoxelizeParams params;
  cloud.Describe(params);
  params.is_valid = nullptr;
  ExpectSame(params);
}

}  // namespace
}  // namespace voxserve::kernels::voxelize_clouds_cuda_test
