// Compares the positions of voxels with a loop over their points in double, on every device.

#include "kernels/image/sites/voxel_positions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::voxel_positions_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

// Points of some samples, and their voxels.
struct Cloud {
  Matrix axes = {0, 1, {}, nullptr};
  std::vector<int64_t> point_begin = {0};
  std::vector<int32_t> point_to_voxel;
  std::vector<int32_t> sorted_points;
  std::vector<int64_t> voxel_begin = {0};

  // Returns the smallest coordinate on an axis of the sample's points with a voxel; infinity if it has none.
  double Minimum(size_t sample, int64_t axis) const {
    double minimum = std::numeric_limits<double>::infinity();
    for (int64_t i = point_begin[sample]; i < point_begin[sample + 1]; ++i) {
      if (point_to_voxel[static_cast<size_t>(i)] >= 0) minimum = std::min(minimum, double{axes.at(i, axis)});
    }
    return minimum;
  }
  int64_t num_voxels() const { return static_cast<int64_t>(voxel_begin.size()) - 1; }
  int32_t num_samples() const { return static_cast<int32_t>(point_begin.size()) - 1; }
};

// Some points have no voxel; they are far below the others on every axis.
Cloud RandomCloud(const std::vector<int64_t>& sample_sizes, int32_t dimension, Random& random) {
  Cloud cloud;
  for (const int64_t size : sample_sizes) cloud.point_begin.push_back(cloud.point_begin.back() + size);
  cloud.axes = Matrix(cloud.point_begin.back(), dimension, {.after = 2}, &random);
  for (size_t sample = 0; sample < sample_sizes.size(); ++sample) {
    std::vector<std::vector<int32_t>> voxels(static_cast<size_t>(sample_sizes[sample] / 3 + 1));
    for (int64_t point = cloud.point_begin[sample]; point < cloud.point_begin[sample + 1]; ++point) {
      const bool has_voxel = !random.Chance(0.1);
      for (int32_t axis = 0; axis < dimension; ++axis) {
        float& value = cloud.axes.at(point, axis);
        value = has_voxel ? value * 50 + 5 * static_cast<float>(sample) : -1000.0f;
      }
      if (has_voxel) {
        voxels[std::uniform_int_distribution<size_t>(0, voxels.size() - 1)(random.engine())].push_back(
            static_cast<int32_t>(point));
      }
    }
    cloud.point_to_voxel.resize(static_cast<size_t>(cloud.point_begin[sample + 1]), -1);
    for (const std::vector<int32_t>& points : voxels) {
      if (points.empty()) continue;
      for (const int32_t point : points) {
        cloud.point_to_voxel[static_cast<size_t>(point)] = static_cast<int32_t>(cloud.num_voxels());
        cloud.sorted_points.push_back(point);
      }
      cloud.voxel_begin.push_back(static_cast<int64_t>(cloud.sorted_points.size()));
    }
  }
  return cloud;
}

class VoxelPositionsTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }

  Matrix Run(const Cloud& cloud, VoxelPositionsParams params, bool from_minimum, Margins margins) const {
    const DeviceMatrix axes(device(), DType::kFloat32, cloud.axes);
    const DeviceArray<int32_t> sorted_points(device(), cloud.sorted_points);
    const DeviceArray<int32_t> point_to_voxel(device(), cloud.point_to_voxel);
    const DeviceArray<int64_t> voxel_begin(device(), cloud.voxel_begin), point_begin(device(), cloud.point_begin);
    const DeviceArray<float> minima(device(), static_cast<size_t>(cloud.num_samples() * kMaxDimension));
    const DeviceMatrix out(device(), dtype(), Matrix(cloud.num_voxels(), cloud.axes.channels, margins, nullptr));
    params.axes = axes.View();
    params.sorted_points = sorted_points.data();
    params.voxel_begin = voxel_begin.data();
    if (from_minimum) {
      params.minima = minima.data();
      params.point_to_voxel = point_to_voxel.data();
      params.point_begin = point_begin.data();
      params.num_samples = cloud.num_samples();
    }
    params.out = out.View();
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::VoxelPositions(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::VoxelPositions(params, TestStream()));
      support::Synchronize();
    }
    return out.ToHost();
  }
};
INSTANTIATE_TEST_SUITE_P(Grounds, VoxelPositionsTest, AllGrounds(), GroundName);

TEST_P(VoxelPositionsTest, EqualTheNaiveLoop) {
  Random random(1);
  const std::vector<std::vector<int64_t>> batches = {{}, {0}, {1}, {40}, {0, 30, 0, 1, 500, 0}, {20000, 300}};
  for (const std::vector<int64_t>& batch : batches) {
    for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
      const Cloud cloud = RandomCloud(batch, dimension, random);
      for (const bool is_mean : {false, true}) {
        for (const bool from_minimum : {false, true}) {
          SCOPED_TRACE(testing::Message() << batch.size() << " samples, " << dimension << " axes, mean " << is_mean
                                          << ", from minimum " << from_minimum);
          const VoxelPositionsParams params{
              .is_mean = is_mean, .scale = {0.25f, 1.0f, -0.5f, 2.0f}, .shift = {0.5f, 0.0f, 3.0f, -1.0f}};
          Expected expected(cloud.num_voxels(), dimension);
          for (size_t sample = 0; sample < batch.size(); ++sample) {
            for (int32_t axis = 0; axis < dimension; ++axis) {
              const double minimum = from_minimum ? cloud.Minimum(sample, axis) : 0;
              for (int64_t voxel = 0; voxel < cloud.num_voxels(); ++voxel) {
                const auto first = static_cast<size_t>(cloud.voxel_begin[static_cast<size_t>(voxel)]);
                const auto end =
                    is_mean ? static_cast<size_t>(cloud.voxel_begin[static_cast<size_t>(voxel) + 1]) : first + 1;
                const int32_t point = cloud.sorted_points[first];
                if (point < cloud.point_begin[sample] || point >= cloud.point_begin[sample + 1]) continue;
                for (size_t i = first; i < end; ++i) {
                  expected.Add(voxel, axis,
                               cloud.axes.at(cloud.sorted_points[i], axis) * double{params.scale[axis]} /
                                   static_cast<double>(end - first));
                }
                expected.Add(voxel, axis, -minimum * params.scale[axis]);
                expected.Add(voxel, axis, params.shift[axis]);
              }
            }
          }
          ExpectNear(Run(cloud, params, from_minimum, {.before = 1, .after = 2}), expected, dtype());
        }
      }
    }
  }
}

// The least values are negative, positive, zeros of both signs and the limits of the type.
TEST_P(VoxelPositionsTest, FindsAMinimumOfAnySign) {
  if (dtype() != DType::kFloat32) GTEST_SKIP() << "values are beyond the type";
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const std::vector<float>& values : {std::vector<float>{3, 2, 5},
                                           {-1, 2, -3},
                                           {0.0f, -0.0f, 1},
                                           {-0.0f, 0.0f, 1},
                                           {kMost, kMost, kMost},
                                           {-kMost / 2, 0, kMost / 2},
                                           {1e-40f, 2e-40f, 3e-40f}}) {
    Cloud cloud{.axes = Matrix(3, 1, {}, nullptr),
                .point_begin = {0, 3},
                .point_to_voxel = {0, 1, 2},
                .sorted_points = {0, 1, 2},
                .voxel_begin = {0, 1, 2, 3}};
    for (int64_t i = 0; i < 3; ++i) cloud.axes.at(i, 0) = values[static_cast<size_t>(i)];
    const Matrix out = Run(cloud, {}, true, {});
    const float least = *std::min_element(values.begin(), values.end());
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(out.at(i, 0), values[static_cast<size_t>(i)] - least);
  }
}

}  // namespace
}  // namespace voxserve::kernels::voxel_positions_test
