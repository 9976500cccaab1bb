// Tests kernels between rows of points and rows of sites against naive loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/points/devoxelize.h"
#include "kernels/points/point_features.h"
#include "kernels/points/point_offsets.h"
#include "kernels/points/point_to_voxel.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::point_kernels_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

const std::vector<Margins> kMargins = {{}, {.before = 8, .after = 8}, {.before = 1, .after = 2}};

void RunDevoxelize(Device device, const DevoxelizeParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::Devoxelize(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::Devoxelize(params, TestStream()));
}

void RunPointToVoxel(Device device, const PointToVoxelParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::PointToVoxel(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::PointToVoxel(params, TestStream()));
}

void RunPointFeatures(Device device, const PointFeaturesParams& params) {
  if (device == Device::kCpu) {
    ThreadPool pool(2);
    cpu::PointFeatures(params, pool);
    return;
  }
  if constexpr (kHasCuda) ExpectCudaSuccess(cuda::PointFeatures(params, TestStream()));
}

class PointKernelTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }
};
INSTANTIATE_TEST_SUITE_P(Grounds, PointKernelTest, AllGrounds(), GroundName);

TEST_P(PointKernelTest, DevoxelizeEqualsTheNaiveLoop) {
  Random random(1);
  const int64_t num_in = 40;
  for (const int64_t rows : {0, 1, 130}) {
    for (const int32_t channels : {1, 3, 8, 12, 40, 64}) {
      for (const int32_t num_neighbours : {1, 2, 4, 8, 16}) {
        for (const bool has_weights : {false, true}) {
          for (const DType out_dtype : OutDTypes(dtype())) {
            const EpilogueCase epilogue = random.OneOf(EpilogueCases());
            const Margins margins = random.OneOf(kMargins);
            const Matrix in(num_in, channels, margins, &random, dtype());
            const Matrix residual(rows, channels, margins, &random, dtype());
            const int64_t pitch = num_neighbours + 3;
            std::vector<int32_t> neighbours(static_cast<size_t>(rows * pitch), 12345);  // not a valid row
            const std::vector<float> weights = random.Floats(rows * pitch);
            const std::vector<float> bias = random.Floats(channels);
            Expected expected(rows, channels);
            for (int64_t row = 0; row < rows; ++row) {
              for (int64_t n = row * pitch; n < row * pitch + num_neighbours; ++n) {
                const auto i = static_cast<size_t>(n);
                neighbours[i] = std::uniform_int_distribution<int32_t>(-2, num_in - 1)(random.engine());
                if (neighbours[i] < 0) continue;
                for (int32_t c = 0; c < channels; ++c) {
                  expected.Add(row, c, (has_weights ? double{weights[i]} : 1.0) * in.at(neighbours[i], c));
                }
              }
            }
            expected.Finish(epilogue.bias ? &bias : nullptr, epilogue.residual ? &residual : nullptr, epilogue.relu);
            const DeviceArray<int32_t> device_neighbours(device(), neighbours);
            const DeviceArray<float> device_weights(device(), weights), device_bias(device(), bias);
            const DeviceMatrix device_in(device(), dtype(), in), device_residual(device(), dtype(), residual);
            const DeviceMatrix out(device(), out_dtype, Matrix(rows, channels, margins, nullptr));
            RunDevoxelize(device(), {.num_neighbours = num_neighbours,
                                     .neighbours = device_neighbours.data(),
                                     .weights = has_weights ? device_weights.data() : nullptr,
                                     .neighbour_pitch = pitch,
                                     .in = device_in.View(),
                                     .out = out.View(),
                                     .epilogue = epilogue.With(device_bias.data(), device_residual.View())});
            ExpectNear(out.ToHost(), expected, dtype());
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(PointKernelTest, PointToVoxelEqualsTheNaiveLoop) {
  Random random(2);
  for (const int64_t num_points : {0, 1, 400, 2500}) {
    for (const int32_t channels : {1, 3, 8, 24, 304}) {
      const int64_t num_sites = 50;
      const Margins margins = random.OneOf(kMargins);
      const Matrix in(num_points, channels, margins, &random, dtype());
      std::vector<int32_t> sorted_points(static_cast<size_t>(num_points));
      std::iota(sorted_points.begin(), sorted_points.end(), 0);
      std::shuffle(sorted_points.begin(), sorted_points.end(), random.engine());
      // Some sites have no points, some have many, and one has many more.
      std::vector<int64_t> site_begin = {0};
      for (int64_t site = 0; site < num_sites; ++site) {
        const int64_t left = num_points - site_begin.back();
        const int64_t wanted = site == 9 ? 1100 : random.Chance(0.4) ? 0 : 1 + site * 7 % 60;
        site_begin.push_back(site_begin.back() + std::min(left, wanted));
      }
      const DeviceArray<int32_t> device_points(device(), sorted_points);
      const DeviceArray<int64_t> device_begin(device(), site_begin);
      const DeviceMatrix device_in(device(), dtype(), in);
      const Matrix slots(num_sites, channels, margins, &random, dtype());
      const DeviceMatrix device_slots(device(), dtype(), slots);
      for (const PoolReduce reduce : {PoolReduce::kMax, PoolReduce::kAverage, PoolReduce::kSum}) {
        for (const DType out_dtype : OutDTypes(dtype())) {
          const int64_t max_points = random.Chance(0.5) ? 0 : 12;
          const bool has_slots = reduce == PoolReduce::kMax && max_points > 0;
          const DeviceMatrix device_out(device(), out_dtype, Matrix(num_sites, channels, margins, nullptr));
          RunPointToVoxel(device(), {.reduce = reduce,
                                     .max_points = max_points,
                                     .site_begin = device_begin.data(),
                                     .sorted_points = device_points.data(),
                                     .in = device_in.View(),
                                     .empty_slots = has_slots ? device_slots.View() : Rows(),
                                     .out = device_out.View()});
          const Matrix out = device_out.ToHost();
          EXPECT_TRUE(out.MarginsAreUntouched());
          for (int64_t site = 0; site < num_sites; ++site) {
            const auto begin = static_cast<size_t>(site_begin[static_cast<size_t>(site)]);
            auto end = static_cast<size_t>(site_begin[static_cast<size_t>(site) + 1]);
            const bool is_full = end - begin >= static_cast<size_t>(max_points);
            if (max_points > 0 && is_full) end = begin + static_cast<size_t>(max_points);
            for (int32_t c = 0; c < channels; ++c) {
              double sum = 0, largest = -std::numeric_limits<double>::infinity();
              if (has_slots && !is_full) {
                largest = slots.at(site, c);
              } else if (begin == end) {
                largest = 0;
              }
              for (size_t i = begin; i < end; ++i) {
                sum += in.at(sorted_points[i], c);
                largest = std::max(largest, double{in.at(sorted_points[i], c)});
              }
              const double count = static_cast<double>(std::max<size_t>(end - begin, 1));
              const double expected = reduce == PoolReduce::kMax       ? largest
                                      : reduce == PoolReduce::kAverage ? sum / count
                                                                       : sum;
              ASSERT_NEAR(out.at(site, c), expected, reduce == PoolReduce::kMax ? 0 : Tolerance(dtype(), count))
                  << "reduce " << static_cast<int>(reduce) << ", site " << site << ", channel " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(PointKernelTest, PointToVoxelKeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Matrix in(3, 1, {}, nullptr);
  in.values = {1, nan, 2};
  const DeviceArray<int32_t> points(device(), std::vector<int32_t>{0, 1, 2});
  const DeviceArray<int64_t> begin(device(), std::vector<int64_t>{0, 2, 3});
  const DeviceMatrix device_in(device(), dtype(), in), out(device(), dtype(), Matrix(2, 1, {}, nullptr));
  RunPointToVoxel(device(), {.reduce = PoolReduce::kMax,
                             .site_begin = begin.data(),
                             .sorted_points = points.data(),
                             .in = device_in.View(),
                             .out = out.View()});
  EXPECT_TRUE(std::isnan(out.ToHost().at(0, 0)));
  EXPECT_EQ(out.ToHost().at(1, 0), 2);
}

TEST_P(PointKernelTest, PointFeaturesAreRoundedAndZeroWithoutAVoxel) {
  Random random(3);
  for (const int64_t num_points : {0, 1, 300}) {
    for (const int32_t channels : {1, 4, 5}) {
      const Margins margins = random.OneOf(kMargins);
      const int32_t pitch = channels + 3;
      const std::vector<float> features = random.Floats(num_points * pitch);
      std::vector<int32_t> point_to_voxel(static_cast<size_t>(num_points));
      for (int32_t& voxel : point_to_voxel) voxel = random.Chance(0.3) ? -1 : random.Chance(0.2) ? -3 : 7;
      const DeviceArray<float> device_features(device(), features);
      const DeviceArray<int32_t> device_voxels(device(), point_to_voxel);
      const DeviceMatrix device_out(device(), dtype(), Matrix(num_points, channels, margins, nullptr));
      const ConstRows rows = Rows::Packed(device_features.data(), DType::kFloat32, num_points, pitch);
      RunPointFeatures(
          device(),
          {.point_to_voxel = device_voxels.data(), .features = rows.Columns(0, channels), .out = device_out.View()});
      const Matrix out = device_out.ToHost();
      EXPECT_TRUE(out.MarginsAreUntouched());
      for (int64_t point = 0; point < num_points; ++point) {
        for (int32_t c = 0; c < channels; ++c) {
          const bool has_voxel = point_to_voxel[static_cast<size_t>(point)] >= 0;
          const float feature = features[static_cast<size_t>(point * pitch + c)];
          ASSERT_EQ(out.at(point, c), has_voxel ? Rounded(dtype(), feature) : 0.0f) << point << " " << c;
        }
      }
    }
  }
}

// Only the GPU knows how many points there are. It must not look for the voxels of points behind them, and leaves their
// rows as they are.
TEST_P(PointKernelTest, RowsEndWithTheLastPoint) {
  if (device() == Device::kCpu) GTEST_SKIP() << "the CPU is told the number of points";
  Random random(4);
  constexpr int64_t kCapacity = 300, kPoints = 170;
  constexpr int32_t kChannels = 3;
  const Matrix before(kCapacity, kChannels, {}, &random, dtype());
  const std::vector<float> features = random.Floats(kCapacity * kChannels);
  const std::vector<float> mean = {0.25f, -0.5f, 1};
  std::vector<int32_t> point_to_voxel(kCapacity, 1 << 30);  // no voxel has this row
  std::fill_n(point_to_voxel.begin(), kPoints, 0);
  const DeviceArray<float> device_features(device(), features), device_mean(device(), mean);
  const DeviceArray<int32_t> device_voxels(device(), point_to_voxel);
  const DeviceArray<int64_t> num_points(device(), std::vector<int64_t>{kPoints});
  const ConstRows rows = ConstRows::Packed(device_features.data(), DType::kFloat32, kCapacity, kChannels);
  for (const bool are_offsets : {false, true}) {
    SCOPED_TRACE(are_offsets ? "PointOffsets" : "PointFeatures");
    const DeviceMatrix device_out(device(), dtype(), before);
    Rows out = device_out.View();
    out.num_rows = num_points.data();
    if (are_offsets) {
      if constexpr (kHasCuda) {
        ExpectCudaSuccess(
            cuda::PointOffsets({.dimension = kChannels,
                                .point_to_voxel = device_voxels.data(),
                                .axes = rows,
                                .means = ConstRows::Packed(device_mean.data(), DType::kFloat32, 1, kChannels),
                                .out = out},
                               TestStream()));
      }
    } else {
      RunPointFeatures(device(), {.point_to_voxel = device_voxels.data(), .features = rows, .out = out});
    }
    const Matrix made = device_out.ToHost();
    for (int64_t point = 0; point < kCapacity; ++point) {
      for (int32_t c = 0; c < kChannels; ++c) {
        const float from = are_offsets ? mean[static_cast<size_t>(c)] : 0.0f;
        const float value = features[static_cast<size_t>(point * kChannels + c)] - from;
        ASSERT_EQ(made.at(point, c), point < kPoints ? Rounded(dtype(), value) : before.at(point, c)) << point;
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::point_kernels_test
