#pragma once

// Voxelizes on the CPU or the GPU, for tests. The GPU's rows are in the order of their MortonKeys. They are put into
// the CPU's order, which is that of CoordinateKeys, so that a test has one expectation for both devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/points/voxel_limit.h"
#include "kernels/points/voxelize.h"
#include "tests/kernels/coordinates/geometry_testing.h"
#include "tests/kernels/points/voxelize_testing.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::fixtures {

using support::Device;
using support::DeviceArray;

struct Voxels : VoxelizeBuffers {
  // [B] The outputs of LimitVoxels. Empty if VoxelizeOn got no max_voxels.
  std::vector<int64_t> num_dropped_voxels;
  std::vector<int64_t> num_dropped_points;
  std::vector<int64_t> max_coordinate;  // [kMaxDimension] empty on the CPU
};

inline Axes UnpackMorton(int32_t dimension, uint64_t key, int32_t* sample) {
  const auto unpack = [&](auto morton) {
    *sample = decltype(morton)::Sample(key);
    return decltype(morton)::Unpack(key);
  };
  if (dimension == 1) return unpack(MortonKey<1>{});
  if (dimension == 2) return unpack(MortonKey<2>{});
  if (dimension == 3) return unpack(MortonKey<3>{});
  return unpack(MortonKey<4>{});
}

// Returns the largest coordinate on each axis of [kMaxDimension], 0 where there is none. keys: CoordinateKeys.
inline std::vector<int64_t> LargestCoordinates(int32_t dimension, const std::vector<uint64_t>& keys) {
  const CoordinateKey layout(dimension);
  std::vector<int64_t> largest(kMaxDimension, 0);
  for (const uint64_t key : keys) {
    const Axes coordinate = layout.Unpack(key);
    for (size_t axis = 0; axis < largest.size(); ++axis) {
      largest[axis] = std::max<int64_t>(largest[axis], coordinate[axis]);
    }
  }
  return largest;
}

// Puts the rows of a GPU into the order of their CoordinateKeys. Expects that their MortonKeys ascend.
inline void SortRowsByCoordinate(int32_t dimension, Voxels& voxels) {
  EXPECT_EQ(std::adjacent_find(voxels.keys.begin(), voxels.keys.end(), std::greater_equal<>()), voxels.keys.end())
      << "keys do not ascend";
  const Voxels made = voxels;
  const CoordinateKey layout(dimension);
  std::vector<uint64_t> keys;
  for (const uint64_t key : made.keys) {
    int32_t sample = 0;
    const Axes coordinate = UnpackMorton(dimension, key, &sample);
    keys.push_back(layout.Pack(sample, coordinate));
  }
  std::vector<size_t> rows(keys.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
  std::vector<int32_t> new_rows(rows.size());
  voxels.sorted_points.clear();
  voxels.voxel_begin = {0};
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t from = rows[row];
    new_rows[from] = static_cast<int32_t>(row);
    voxels.keys[row] = keys[from];
    for (int64_t i = made.voxel_begin[from]; i < made.voxel_begin[from + 1]; ++i) {
      voxels.sorted_points.push_back(made.sorted_points.at(static_cast<size_t>(i)));
    }
    voxels.voxel_begin.push_back(static_cast<int64_t>(voxels.sorted_points.size()));
  }
  for (int32_t& row : voxels.point_to_voxel) {
    if (row >= 0) row = new_rows.at(static_cast<size_t>(row));
  }
}

inline Voxels VoxelizeOnCpu(VoxelizeParams params, int num_threads, std::optional<int64_t> max_voxels,
                            VoxelOrder order) {
  ThreadPool pool(num_threads);
  Voxels voxels;
  voxels.Attach(params);
  cpu::Voxelize(params, pool);
  if (max_voxels.has_value()) {
    voxels.num_dropped_voxels.assign(static_cast<size_t>(params.num_samples), 77);
    voxels.num_dropped_points.assign(static_cast<size_t>(params.num_samples), 77);
    cpu::LimitVoxels({.voxels = params,
                      .max_voxels = *max_voxels,
                      .order = order,
                      .num_dropped_voxels = voxels.num_dropped_voxels.data(),
                      .num_dropped_points = voxels.num_dropped_points.data()},
                     pool);
  }
  voxels.CutToSize();
  return voxels;
}

inline Voxels VoxelizeOnCuda(VoxelizeParams params, std::optional<int64_t> max_voxels, VoxelOrder order) {
  Voxels voxels;
  if constexpr (kHasCuda) {
    constexpr Device kCuda = Device::kCuda;
    const auto num_points = static_cast<size_t>(params.num_points);
    const auto num_samples = static_cast<size_t>(params.num_samples);
    const auto num_there = static_cast<size_t>(params.point_begin[num_samples]);  // at most num_points
    const DeviceArray<int64_t> point_begin(
        kCuda, std::vector<int64_t>(params.point_begin, params.point_begin + num_samples + 1));
    // The last row ends after its axes.
    const size_t num_floats = num_points == 0 ? 0
                                              : (num_points - 1) * static_cast<size_t>(params.axes.pitch) +
                                                    static_cast<size_t>(params.dimension);
    const DeviceArray<float> axes(kCuda, std::vector<float>(params.axes.floats(), params.axes.floats() + num_floats));
    const DeviceArray<uint8_t> is_valid(
        kCuda, params.is_valid == nullptr ? std::vector<uint8_t>()
                                          : std::vector<uint8_t>(params.is_valid, params.is_valid + num_points));
    const DeviceArray<uint64_t> keys(kCuda, num_points);
    const DeviceArray<int32_t> point_to_voxel(kCuda, num_points), sorted_points(kCuda, num_points);
    const DeviceArray<int64_t> voxel_begin(kCuda, num_points + 1), sample_begin(kCuda, num_samples + 1);
    const DeviceArray<int64_t> num_invalid(kCuda, num_samples), num_out_of_range(kCuda, num_samples);
    const DeviceArray<int64_t> num_dropped_voxels(kCuda, num_samples), num_dropped_points(kCuda, num_samples);
    const DeviceArray<Axes> sample_origin(kCuda, num_samples);
    const DeviceArray<int64_t> max_coordinate(kCuda, std::vector<int64_t>(kMaxDimension, 0));
    const DeviceArray<char> workspace(kCuda, cuda::VoxelizeWorkspaceBytes(params));
    params.point_begin = point_begin.data();
    params.axes.data = axes.data();
    if (params.is_valid != nullptr) params.is_valid = is_valid.data();
    params.keys = keys.data();
    params.point_to_voxel = point_to_voxel.data();
    params.sorted_points = sorted_points.data();
    params.voxel_begin = voxel_begin.data();
    params.sample_begin = sample_begin.data();
    params.num_invalid = num_invalid.data();
    params.num_out_of_range = num_out_of_range.data();
    params.sample_origin = sample_origin.data();
    params.max_coordinate = max_coordinate.data();
    params.workspace = workspace.data();
    support::ExpectCudaSuccess(cuda::Voxelize(params, support::TestStream()));
    if (max_voxels.has_value()) {
      VoxelLimitParams limit{.voxels = params,
                             .max_voxels = *max_voxels,
                             .order = order,
                             .num_dropped_voxels = num_dropped_voxels.data(),
                             .num_dropped_points = num_dropped_points.data()};
      const DeviceArray<char> limit_workspace(kCuda, cuda::LimitVoxelsWorkspaceBytes(limit));
      limit.workspace = limit_workspace.data();
      support::ExpectCudaSuccess(cuda::LimitVoxels(limit, support::TestStream()));
      support::Synchronize();
      voxels.num_dropped_voxels = num_dropped_voxels.ToHost();
      voxels.num_dropped_points = num_dropped_points.ToHost();
    }
    voxels.keys = keys.ToHost();
    voxels.point_to_voxel = point_to_voxel.ToHost();
    voxels.point_to_voxel.resize(num_there);
    voxels.sorted_points = sorted_points.ToHost();
    voxels.voxel_begin = voxel_begin.ToHost();
    voxels.sample_begin = sample_begin.ToHost();
    voxels.num_invalid = num_invalid.ToHost();
    voxels.num_out_of_range = num_out_of_range.ToHost();
    voxels.sample_origin = sample_origin.ToHost();
    voxels.max_coordinate = max_coordinate.ToHost();
    voxels.CutToSize();
    SortRowsByCoordinate(params.dimension, voxels);
  }
  return voxels;
}

// Voxelizes on the device, then limits the voxels of each sample to max_voxels, if there is one. The inputs in `params`
// are in host memory; the outputs need not be set. num_threads: the threads of the CPU's pool.
inline Voxels VoxelizeOn(Device device, const VoxelizeParams& params, int num_threads = 2,
                         std::optional<int64_t> max_voxels = std::nullopt, VoxelOrder order = VoxelOrder::kNearest) {
  return device == Device::kCpu ? VoxelizeOnCpu(params, num_threads, max_voxels, order)
                                : VoxelizeOnCuda(params, max_voxels, order);
}

}  // namespace voxserve::kernels::fixtures
