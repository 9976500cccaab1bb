// Compares point-to-voxel with results that spconv 2 published (golden_ext_p2v): the voxels that are kept under a limit
// on their number, and the points of each voxel in order.
//
// - Cases "p2v_cpu" come from spconv's CPU version, which lists voxels in the order of their first points.
// - Cases "p2v_gpu_canon" come from its GPU version. They were brought into a canonical order before they were stored.
// - spconv stores a coordinate with its axes reversed: the last axis comes first.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "tests/kernels/points/device_voxels.h"
#include "tests/support/array_tree.h"
#include "tests/support/spconv_outputs.h"

namespace voxserve::kernels::spconv_voxels_test {
namespace {

using fixtures::Voxels;
using support::ArrayTree;
using support::Device;
using support::NpyArray;

struct VoxelCase {
  explicit VoxelCase(const ArrayTree& value)
      : expect(value.at("expect")),
        points(value.at("points").tensor().values<float>()),
        num_columns(value.at("points").tensor().shape[1]),
        max_voxels(value.at("ctor").at("max_num_voxels").AsInt()),
        max_points(value.at("ctor").at("max_num_points_per_voxel").AsInt()),
        point_begin{0, value.at("points").tensor().shape[0]} {
    params.dimension = static_cast<int32_t>(value.at("ndim").AsInt());
    params.rounding = VoxelRounding::kFloor;
    params.origin = VoxelOrigin::kRange;
    params.has_range = true;
    const auto dimension = static_cast<size_t>(params.dimension);
    for (size_t axis = 0; axis < dimension; ++axis) {
      const auto number = [&](const char* name, size_t at) {
        return static_cast<float>(value.at("ctor").at(name).AsFloats()[at]);
      };
      params.voxel_size[axis] = number("vsize_xyz", axis);
      params.range_min[axis] = number("coors_range_xyz", axis);
      params.range_max[axis] = number("coors_range_xyz", dimension + axis);
    }
    params.num_points = point_begin[1];
    params.num_samples = 1;
    params.point_begin = point_begin.data();
    params.axes =
        ConstRows::Packed(points.data(), DType::kFloat32, params.num_points, static_cast<int32_t>(num_columns));
  }

  std::vector<float> Point(int32_t point) const {
    const auto* const row = points.data() + point * num_columns;
    return {row, row + num_columns};
  }

  // Returns the CoordinateKey of each voxel that the file lists, in the file's order.
  template <typename T>
  std::vector<uint64_t> Keys(const NpyArray& indices) const {
    std::vector<uint64_t> keys;
    for (int64_t row = 0; row < indices.shape[0]; ++row) {
      Axes site = {0, 0, 0, 0};
      for (int axis = 0; axis < params.dimension; ++axis) {
        site[axis] = static_cast<int32_t>(indices.data<T>()[(row + 1) * params.dimension - 1 - axis]);
      }
      keys.push_back(CoordinateKey(params.dimension).Pack(0, site));
    }
    return keys;
  }

  ArrayTree expect;
  std::vector<float> points;
  int64_t num_columns;
  int64_t max_voxels;
  int64_t max_points;  // per voxel
  std::vector<int64_t> point_begin;
  VoxelizeParams params;
};

// Returns our row for each of these voxels, after a check that `made` has exactly these voxels.
std::vector<size_t> RowsOf(const Voxels& made, const std::vector<uint64_t>& keys) {
  std::vector<uint64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(made.keys, sorted);
  std::vector<size_t> rows;
  for (const uint64_t key : keys) {
    rows.push_back(static_cast<size_t>(std::lower_bound(made.keys.begin(), made.keys.end(), key) - made.keys.begin()));
  }
  return rows;
}

// Returns the first max_points points of the voxel in this row.
std::vector<std::vector<float>> FirstPoints(const VoxelCase& c, const Voxels& made, size_t row) {
  std::vector<std::vector<float>> points;
  const int64_t end = std::min(made.voxel_begin[row + 1], made.voxel_begin[row] + c.max_points);
  for (int64_t i = made.voxel_begin[row]; i < end; ++i) {
    points.push_back(c.Point(made.sorted_points[static_cast<size_t>(i)]));
  }
  return points;
}

class SpconvVoxelsTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    OPEN_SPCONV_OUTPUT_OR_SKIP(file, "golden_ext_p2v");
    cases_ = file.at("cases").items();
  }

  // Calls `check` with every case of this kind and our result for the case. Expects that there are num_cases such
  // cases.
  template <typename Check>
  void CheckCases(const std::string& kind, int num_cases, const Check& check) const {
    for (const ArrayTree& value : cases_) {
      if (value.at("kind").AsString() != kind) continue;
      --num_cases;
      SCOPED_TRACE(value.at("id").AsString());
      const VoxelCase c(value);
      check(c, fixtures::VoxelizeOn(GetParam(), c.params, 2, c.max_voxels, VoxelOrder::kFirstSeen));
    }
    EXPECT_EQ(num_cases, 0);
  }

 private:
  std::vector<ArrayTree> cases_;
};
INSTANTIATE_TEST_SUITE_P(Devices, SpconvVoxelsTest, support::AllDevices(), support::DeviceName);

TEST_P(SpconvVoxelsTest, TheVoxelsSeenFirstAndTheirFirstPoints) {
  CheckCases("p2v_cpu", 3, [](const VoxelCase& c, const Voxels& made) {
    const std::vector<size_t> rows = RowsOf(made, c.Keys<int32_t>(c.expect.at("indices").tensor()));
    const auto* const counts = c.expect.at("num_per_voxel").tensor().data<int32_t>();
    const auto* values = c.expect.at("voxels").tensor().data<float>();  // [voxels, max_points, columns]
    std::map<int32_t, int64_t> voxel_of_row;
    for (size_t voxel = 0; voxel < rows.size(); ++voxel, values += c.max_points * c.num_columns) {
      voxel_of_row[static_cast<int32_t>(rows[voxel])] = static_cast<int64_t>(voxel);
      const std::vector<std::vector<float>> points = FirstPoints(c, made, rows[voxel]);
      ASSERT_EQ(points.size(), static_cast<size_t>(counts[voxel])) << voxel;
      for (size_t i = 0; i < points.size(); ++i) {
        const float* const row = values + static_cast<int64_t>(i) * c.num_columns;
        ASSERT_EQ(points[i], std::vector<float>(row, row + c.num_columns)) << voxel << ", point " << i;
      }
    }
    // A point has the id -1 if it is in no voxel, or in a voxel that was not kept.
    const auto* const voxel_of_point = c.expect.at("pc_voxel_id").tensor().data<int64_t>();
    for (size_t point = 0; point < made.point_to_voxel.size(); ++point) {
      const int32_t row = made.point_to_voxel[point];
      ASSERT_EQ(row >= 0 ? voxel_of_row.at(row) : -1, voxel_of_point[point]) << point;
    }
    EXPECT_EQ(made.num_dropped_voxels[0] > 0, made.keys.size() == static_cast<size_t>(c.max_voxels));
  });
}

TEST_P(SpconvVoxelsTest, OfOneAndOfFourAxes) {
  CheckCases("p2v_gpu_canon", 2, [](const VoxelCase& c, const Voxels& made) {
    const std::vector<size_t> rows = RowsOf(made, c.Keys<int64_t>(c.expect.at("indices_canon").tensor()));
    const auto* const counts = c.expect.at("num_per_voxel_canon").tensor().data<int64_t>();
    const auto* values = c.expect.at("voxels_canon").tensor().data<double>();
    for (size_t voxel = 0; voxel < rows.size(); ++voxel, values += c.max_points * c.num_columns) {
      std::vector<std::vector<float>> points = FirstPoints(c, made, rows[voxel]);
      ASSERT_EQ(points.size(), static_cast<size_t>(counts[voxel])) << voxel;
      if (!c.expect.at("check_contents").AsBool()) continue;  // a race on spconv's GPU decided which points were kept
      std::vector<std::vector<float>> expected;
      for (size_t i = 0; i < points.size(); ++i) {
        const double* const row = values + static_cast<int64_t>(i) * c.num_columns;
        expected.emplace_back(row, row + c.num_columns);
      }
      std::sort(points.begin(), points.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(points, expected) << voxel;
    }
  });
}

}  // namespace
}  // namespace voxserve::kernels::spconv_voxels_test
