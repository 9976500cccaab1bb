// Compares the sites around each position with their weights, and the points of each site, with naive loops over all
// sites and points, on every device.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/coordinates/morton_key.h"
#include "kernels/points/interpolation_weights.h"
#include "kernels/points/point_groups.h"
#include "tests/kernels/points/device_voxels.h"

namespace voxserve::kernels::interpolation_test {
namespace {

using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

// Converts CoordinateKeys to the keys that the device uses. Rows keep their order; on a GPU, any order is valid.
std::vector<uint64_t> KeysOn(Device device, int32_t dimension, std::vector<uint64_t> keys) {
  const CoordinateKey layout(dimension);
  if (device == Device::kCpu) return keys;
  for (uint64_t& key : keys) key = ToMortonKey(layout, key);
  return keys;
}

// Returns ascending CoordinateKeys of two samples.
std::vector<uint64_t> RandomKeys(int32_t dimension, int extent, size_t count, std::mt19937& random) {
  const CoordinateKey layout(dimension);
  std::uniform_int_distribution<int32_t> axis(-extent, extent), sample(0, 1);
  std::set<uint64_t> keys;
  for (size_t i = 0; i < count; ++i) {
    Axes site = {0, 0, 0, 0};
    for (int a = 0; a < dimension; ++a) site[a] = axis(random);
    keys.insert(layout.Pack(sample(random), site));
  }
  return {keys.begin(), keys.end()};
}

// A value that InterpolationWeights never writes; a neighbour with its bits is no row either.
constexpr float kNotWritten = -12345;

struct Found {
  std::vector<int32_t> neighbours;
  std::vector<float> weights;
};

// The params' pointers to inputs must be of the device. The function sets those to outputs and workspace.
Found RunWeights(Device device, InterpolationWeightsParams params) {
  const size_t width = size_t{1} << params.dimension;
  params.pitch = static_cast<int64_t>(2 * width);
  const auto size = static_cast<size_t>(params.num_positions) * 2 * width;
  const DeviceArray<float> out(device, std::vector<float>(size, kNotWritten));
  params.neighbours = reinterpret_cast<int32_t*>(out.data());
  params.weights = out.data() + width;
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::InterpolationWeights(params, pool);
  } else if constexpr (kHasCuda) {
    const DeviceArray<char> workspace(device, cuda::InterpolationWeightsWorkspaceBytes(params));
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::InterpolationWeights(params, TestStream()));
    support::Synchronize();
  }
  Found found;
  const std::vector<float> values = out.ToHost();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / width % 2 == 0) {
      found.neighbours.push_back(std::bit_cast<int32_t>(values[i]));
    } else {
      found.weights.push_back(values[i]);
    }
  }
  return found;
}

// Expects the naive loop's neighbours and weights in a row. `position` is in the coordinates of the level's sites.
void ExpectAround(const Found& found, size_t row, int32_t sample, const std::vector<double>& position,
                  const std::map<uint64_t, int32_t>& row_of, int32_t dimension) {
  const CoordinateKey layout(dimension);
  const size_t width = size_t{1} << dimension;
  std::vector<int32_t> neighbours;
  std::vector<double> weights;
  double sum = 0;
  for (size_t n = 0; n < width; ++n) {
    double weight = 1;
    Axes site = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension; ++axis) {
      const double at = position[static_cast<size_t>(axis)];
      site[axis] = static_cast<int32_t>(std::floor(at)) + static_cast<int32_t>(n >> (dimension - 1 - axis) & 1);
      weight *= 1 - std::abs(at - site[axis]);
    }
    const auto there = row_of.find(layout.Pack(sample, site));
    const bool counts = there != row_of.end() && weight > 0;
    neighbours.push_back(counts ? there->second : -1);
    weights.push_back(counts ? weight : 0);
    sum += weights.back();
  }
  for (size_t n = 0; n < width; ++n) {
    ASSERT_NEAR(found.weights[row * width + n], weights[n] / (sum + 1e-8), 1e-5) << "row " << row << " site " << n;
    ASSERT_EQ(found.neighbours[row * width + n], neighbours[n]) << "row " << row << " site " << n;
  }
}

std::map<uint64_t, int32_t> RowsOf(const std::vector<uint64_t>& keys) {
  std::map<uint64_t, int32_t> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows[keys[i]] = static_cast<int32_t>(i);
  return rows;
}

class InterpolationTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, InterpolationTest, support::AllDevices(), support::DeviceName);

TEST_P(InterpolationTest, SitesBetweenSites) {
  std::mt19937 random(1);
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    for (const auto& [multiplier, divisor] : {std::pair(1, 1), {1, 2}, {1, 16}, {2, 3}, {3, 2}, {2, 1}}) {
      const std::vector<uint64_t> positions = RandomKeys(dimension, 20, 300, random);
      const int extent = 20 * multiplier / divisor + 1;
      const std::vector<uint64_t> keys = RandomKeys(dimension, extent, dimension == 4 ? 3000 : 250, random);
      SiteRatio ratio;
      ratio.multiplier.fill(multiplier);
      ratio.divisor.fill(divisor);
      ratio.divisor[0] = 2 * divisor;  // the axes differ
      const DeviceArray<uint64_t> device_positions(GetParam(), KeysOn(GetParam(), dimension, positions));
      const DeviceArray<uint64_t> device_keys(GetParam(), KeysOn(GetParam(), dimension, keys));
      const Found found = RunWeights(GetParam(), {.dimension = dimension,
                                                  .num_positions = static_cast<int64_t>(positions.size()),
                                                  .ratio = ratio,
                                                  .position_keys = device_positions.data(),
                                                  .keys = device_keys.data(),
                                                  .num_sites = static_cast<int64_t>(keys.size())});
      const std::map<uint64_t, int32_t> row_of = RowsOf(keys);
      for (size_t i = 0; i < positions.size(); ++i) {
        std::vector<double> position;
        for (int axis = 0; axis < dimension; ++axis) {
          position.push_back(static_cast<double>(layout.Coordinate(positions[i], axis)) * ratio.multiplier[axis] /
                             ratio.divisor[axis]);
        }
        ExpectAround(found, i, layout.Sample(positions[i]), position, row_of, dimension);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Positions are points as Voxelize places them: by every origin and both roundings, with voxels that differ in size by
// axis, and with points that have no voxel.
TEST_P(InterpolationTest, PointsBetweenSites) {
  std::mt19937 random(2);
  constexpr int32_t kDimension = 3;
  const CoordinateKey layout(kDimension);
  const int64_t num_points = 500;
  for (const VoxelRounding rounding : {VoxelRounding::kHalfEven, VoxelRounding::kFloor}) {
    for (const VoxelOrigin origin : {VoxelOrigin::kMinimum, VoxelOrigin::kRange, VoxelOrigin::kZero}) {
      for (const int32_t divisor : {1, 4}) {
        std::vector<float> points(num_points * kDimension);
        for (float& value : points) value = std::uniform_real_distribution<float>(-3, 3)(random);
        points[7] = std::nanf("");
        for (int i = 0; i < 30; ++i) points[static_cast<size_t>(i) * 6] = 0.25f * static_cast<float>(i % 8) - 1;
        const std::vector<int64_t> point_begin = {0, 200, num_points};
        VoxelizeParams voxelize{.dimension = kDimension,
                                .rounding = rounding,
                                .origin = origin,
                                .has_range = origin == VoxelOrigin::kRange,
                                .voxel_size = {0.5f, 0.3f, 0.7f, 1},
                                .range_min = {-2, -2.1f, -2.8f, 0},
                                .range_max = {2, 2.4f, 2.8f, 0},
                                .num_points = num_points,
                                .num_samples = 2,
                                .point_begin = point_begin.data(),
                                .axes = ConstRows::Packed(points.data(), DType::kFloat32, num_points, kDimension)};
        const fixtures::Voxels voxels = fixtures::VoxelizeOnCpu(voxelize, 2, std::nullopt, VoxelOrder::kFirstSeen);
        // Only every second site of the level exists, so some neighbours are missing.
        std::set<uint64_t> sites;
        for (size_t i = 0; i < voxels.keys.size(); ++i) {
          Axes site = layout.Unpack(voxels.keys[i]);
          for (int axis = 0; axis < kDimension; ++axis) {
            site[axis] = static_cast<int32_t>(std::floor(static_cast<double>(site[axis]) / divisor));
          }
          if (i % 2 == 0) sites.insert(layout.Pack(layout.Sample(voxels.keys[i]), site));
        }
        const std::vector<uint64_t> keys(sites.begin(), sites.end());
        const DeviceArray<uint64_t> device_voxels(GetParam(), KeysOn(GetParam(), kDimension, voxels.keys));
        const DeviceArray<uint64_t> device_keys(GetParam(), KeysOn(GetParam(), kDimension, keys));
        const DeviceArray<int32_t> point_to_voxel(GetParam(), voxels.point_to_voxel);
        const DeviceArray<float> axes(GetParam(), points);
        InterpolationWeightsParams params{
            .dimension = kDimension,
            .num_positions = num_points,
            .position_keys = device_voxels.data(),
            .point_to_voxel = point_to_voxel.data(),
            .axes = ConstRows::Packed(axes.data(), DType::kFloat32, num_points, kDimension),
            .rounding = rounding,
            .keys = device_keys.data(),
            .num_sites = static_cast<int64_t>(keys.size())};
        params.ratio.divisor.fill(divisor);
        std::vector<double> shift(kDimension, 0.0);
        for (size_t axis = 0; axis < kDimension; ++axis) {
          params.voxel_size[axis] = voxelize.voxel_size[axis];
          if (origin == VoxelOrigin::kRange) params.shift[axis] = voxelize.range_min[axis];
        }
        const Found found = RunWeights(GetParam(), params);
        const std::map<uint64_t, int32_t> row_of = RowsOf(keys);
        int num_without = 0;
        for (size_t i = 0; i < static_cast<size_t>(num_points); ++i) {
          const int32_t voxel = voxels.point_to_voxel[i];
          if (voxel < 0) {
            ++num_without;
            for (size_t n = 0; n < 8; ++n) {
              ASSERT_EQ(found.neighbours[8 * i + n], -1) << i;
              ASSERT_EQ(found.weights[8 * i + n], 0) << i;
            }
            continue;
          }
          const int32_t sample = layout.Sample(voxels.keys[static_cast<size_t>(voxel)]);
          std::vector<double> position;
          for (size_t axis = 0; axis < kDimension; ++axis) {
            const float cells = (points[i * kDimension + axis] - params.shift[axis]) / params.voxel_size[axis];
            const int32_t moved = voxels.sample_origin[static_cast<size_t>(sample)][axis];
            position.push_back((static_cast<double>(cells) - moved) / divisor);
          }
          ExpectAround(found, i, sample, position, row_of, kDimension);
          if (HasFatalFailure()) return;
        }
        EXPECT_GT(num_without, 0);
      }
    }
  }
}

// Only the GPU knows how many positions there are. It must not read what lies behind them, and leaves their rows as
// they are.
TEST_P(InterpolationTest, PositionsEndWhereTheDeviceSays) {
  if (GetParam() == Device::kCpu) GTEST_SKIP() << "the CPU is told the number of positions";
  constexpr int32_t kDimension = 3;
  constexpr size_t kCapacity = 700, kWidth = 8;
  std::mt19937 random(5);
  const std::vector<uint64_t> keys = RandomKeys(kDimension, 4, 300, random);
  std::vector<int32_t> point_to_voxel(kCapacity, 1 << 30);  // no voxel has this row
  std::iota(point_to_voxel.begin(), point_to_voxel.begin() + keys.size(), 0);
  const DeviceArray<uint64_t> device_keys(GetParam(), KeysOn(GetParam(), kDimension, keys));
  const DeviceArray<int32_t> device_points(GetParam(), point_to_voxel);
  const DeviceArray<int64_t> num_positions(GetParam(), std::vector<int64_t>{static_cast<int64_t>(keys.size())});
  std::vector<float> axes;
  for (size_t i = 0; i < kCapacity; ++i) {
    for (int axis = 0; axis < kDimension; ++axis) {
      const CoordinateKey layout(kDimension);
      axes.push_back(i < keys.size() ? static_cast<float>(layout.Coordinate(keys[i], axis)) : 0.0f);
    }
  }
  const DeviceArray<float> device_axes(GetParam(), axes);
  const Found found =
      RunWeights(GetParam(), {.dimension = kDimension,
                              .num_positions = kCapacity,
                              .device_num_positions = num_positions.data(),
                              .position_keys = device_keys.data(),
                              .point_to_voxel = device_points.data(),
                              .axes = ConstRows::Packed(device_axes.data(), DType::kFloat32, kCapacity, kDimension),
                              .keys = device_keys.data(),
                              .num_sites = static_cast<int64_t>(keys.size())});
  for (size_t i = 0; i < kCapacity; ++i) {
    // A point in the middle of its voxel has its own site as its first neighbour.
    ASSERT_EQ(found.neighbours[kWidth * i],
              i < keys.size() ? static_cast<int32_t>(i) : std::bit_cast<int32_t>(kNotWritten))
        << i;
    ASSERT_NEAR(found.weights[kWidth * i], i < keys.size() ? 1.0f : kNotWritten, 1e-5) << i;
  }
}

// A position beyond a key's limits has no neighbours, not even those of the coordinate to which the key would wrap.
TEST_P(InterpolationTest, BeyondTheLimits) {
  constexpr int32_t kDimension = 3;
  const CoordinateKey layout(kDimension);
  const int32_t most = layout.max_coordinate(), least = layout.min_coordinate();
  const std::vector<uint64_t> positions = {layout.Pack(0, {least, 0, 0, 0}), layout.Pack(0, {most, 0, 0, 0})};
  const int32_t width = 1 << layout.axis_bits();
  const std::vector<uint64_t> keys = {layout.Pack(0, {2 * most - width, 0, 0, 0}),
                                      layout.Pack(0, {2 * least + width, 0, 0, 0})};
  ASSERT_LT(keys[0], keys[1]);
  for (const int32_t multiplier : {1, 2}) {
    const DeviceArray<uint64_t> device_positions(GetParam(), KeysOn(GetParam(), kDimension, positions));
    const DeviceArray<uint64_t> device_keys(GetParam(), KeysOn(GetParam(), kDimension, keys));
    SiteRatio ratio;
    ratio.multiplier.fill(multiplier);
    const Found found = RunWeights(GetParam(), {.dimension = kDimension,
                                                .num_positions = 2,
                                                .ratio = ratio,
                                                .position_keys = device_positions.data(),
                                                .keys = device_keys.data(),
                                                .num_sites = 2});
    EXPECT_EQ(found.neighbours, std::vector<int32_t>(16, -1));
    EXPECT_EQ(found.weights, std::vector<float>(16, 0));
  }
}

TEST_P(InterpolationTest, LevelWithoutSites) {
  const CoordinateKey layout(2);
  const std::vector<uint64_t> positions = {layout.Pack(0, {1, 2, 0, 0})};
  const DeviceArray<uint64_t> device_positions(GetParam(), KeysOn(GetParam(), 2, positions));
  InterpolationWeightsParams params{.dimension = 2, .num_positions = 1, .position_keys = device_positions.data()};
  EXPECT_EQ(RunWeights(GetParam(), params).neighbours, std::vector<int32_t>(4, -1));
  params.num_positions = 0;
  EXPECT_TRUE(RunWeights(GetParam(), params).neighbours.empty());
}

struct Groups {
  std::vector<int32_t> sorted_points;
  std::vector<int64_t> site_begin;
};

Groups RunGroups(Device device, PointGroupsParams params) {
  const DeviceArray<int32_t> sorted_points(device, static_cast<size_t>(params.num_points));
  const DeviceArray<int64_t> site_begin(device, static_cast<size_t>(params.num_sites) + 1);
  params.sorted_points = sorted_points.data();
  params.site_begin = site_begin.data();
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::PointGroups(params, pool);
  } else if constexpr (kHasCuda) {
    const DeviceArray<char> workspace(device, cuda::PointGroupsWorkspaceBytes(params));
    params.workspace = workspace.data();
    ExpectCudaSuccess(cuda::PointGroups(params, TestStream()));
    support::Synchronize();
  }
  return {sorted_points.ToHost(), site_begin.ToHost()};
}

TEST_P(InterpolationTest, PointsOfSites) {
  std::mt19937 random(3);
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    for (const size_t num_points : {0u, 1u, 700u}) {
      for (const auto& [multiplier, divisor] : {std::pair(1, 1), {1, 3}, {1, 16}, {2, 1}}) {
        const std::vector<uint64_t> voxels = RandomKeys(dimension, 12, 120, random);
        const std::vector<uint64_t> keys = RandomKeys(dimension, 12 * multiplier / divisor + 1, 60, random);
        std::uniform_int_distribution<int32_t> row(-3, static_cast<int32_t>(voxels.size()) - 1);
        std::vector<int32_t> point_to_voxel(num_points);
        for (int32_t& voxel : point_to_voxel) voxel = row(random);
        SiteRatio ratio;
        ratio.multiplier.fill(multiplier);
        ratio.divisor.fill(divisor);
        std::vector<std::vector<int32_t>> expected(keys.size());
        const std::map<uint64_t, int32_t> row_of = RowsOf(keys);
        for (size_t point = 0; point < num_points; ++point) {
          if (point_to_voxel[point] < 0) continue;
          const uint64_t key = voxels[static_cast<size_t>(point_to_voxel[point])];
          Axes site = {0, 0, 0, 0};
          for (int axis = 0; axis < dimension; ++axis) {
            site[axis] = static_cast<int32_t>(
                std::floor(static_cast<double>(layout.Coordinate(key, axis)) * multiplier / divisor));
          }
          const auto there = row_of.find(layout.Pack(layout.Sample(key), site));
          if (there != row_of.end())
            expected[static_cast<size_t>(there->second)].push_back(static_cast<int32_t>(point));
        }
        const DeviceArray<int32_t> device_points(GetParam(), point_to_voxel);
        const DeviceArray<uint64_t> device_voxels(GetParam(), KeysOn(GetParam(), dimension, voxels));
        const DeviceArray<uint64_t> device_keys(GetParam(), KeysOn(GetParam(), dimension, keys));
        const Groups groups = RunGroups(GetParam(), {.dimension = dimension,
                                                     .num_points = static_cast<int64_t>(num_points),
                                                     .point_to_voxel = device_points.data(),
                                                     .ratio = ratio,
                                                     .voxel_keys = device_voxels.data(),
                                                     .keys = device_keys.data(),
                                                     .num_sites = static_cast<int64_t>(keys.size())});
        for (size_t site = 0; site < keys.size(); ++site) {
          const std::vector<int32_t> points(groups.sorted_points.begin() + groups.site_begin[site],
                                            groups.sorted_points.begin() + groups.site_begin[site + 1]);
          ASSERT_EQ(points, expected[site]) << "site " << site << " in " << dimension << " dimensions";
        }
      }
    }
  }
  // There are points, but no site for them.
  const CoordinateKey layout(2);
  const DeviceArray<int32_t> one_point(GetParam(), std::vector<int32_t>{0});
  const DeviceArray<uint64_t> one_voxel(GetParam(), KeysOn(GetParam(), 2, {layout.Pack(0, {1, 1, 0, 0})}));
  const Groups none =
      RunGroups(GetParam(),
                {.dimension = 2, .num_points = 1, .point_to_voxel = one_point.data(), .voxel_keys = one_voxel.data()});
  EXPECT_EQ(none.site_begin, std::vector<int64_t>{0});
}

}  // namespace
}  // namespace voxserve::kernels::interpolation_test
