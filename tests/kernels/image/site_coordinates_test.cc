// Compares the coordinates that sites get as rows with their definition, on every device.

#include "kernels/image/sites/site_coordinates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::site_coordinates_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr double kLargestFloat16 = 65504;

class SiteCoordinatesTest : public testing::TestWithParam<Ground> {
 protected:
  void SetUp() override { SKIP_WITHOUT(device()); }
  Device device() const { return GetParam().device; }
  DType dtype() const { return GetParam().dtype; }
};
INSTANTIATE_TEST_SUITE_P(Grounds, SiteCoordinatesTest, AllGrounds(), GroundName);

TEST_P(SiteCoordinatesTest, EqualTheNaiveLoop) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    std::vector<uint64_t> keys;
    std::vector<Axes> sites;
    for (const int32_t at : {0, 1, -1, 7, layout.min_coordinate(), layout.max_coordinate()}) {
      Axes site = {0, 0, 0, 0};
      for (int32_t axis = 0; axis < dimension; ++axis) site[axis] = axis % 2 == 0 ? at : -(at / 2);
      sites.push_back(site);
      const uint64_t key = layout.Pack(static_cast<int32_t>(sites.size()) % 3, site);
      keys.push_back(device() == Device::kCuda ? ToMortonKey(layout, key) : key);
    }
    const auto rows = static_cast<int64_t>(sites.size());
    const DeviceArray<uint64_t> device_keys(device(), keys);
    const DeviceMatrix device_out(device(), dtype(),
                                  Matrix(rows, dimension, Margins{.before = 1, .after = 2}, nullptr));
    const SiteCoordinatesParams params{.keys = device_keys.data(),
                                       .scale = {0.25f, 1.0f, -0.5f, 2.0f},
                                       .shift = {0.5f, 0.0f, 3.0f, -1.0f},
                                       .out = device_out.View()};
    if (device() == Device::kCpu) {
      ThreadPool pool(3);
      cpu::SiteCoordinates(params, pool);
    } else if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::SiteCoordinates(params, TestStream()));
      support::Synchronize();
    }
    const Matrix out = device_out.ToHost();
    EXPECT_TRUE(out.MarginsAreUntouched());
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t axis = 0; axis < dimension; ++axis) {
        const double coordinate = sites[static_cast<size_t>(row)][axis];
        const double value = coordinate * params.scale[axis] + params.shift[axis];
        SCOPED_TRACE(absl::StrCat(dimension, " axes, row ", row));
        if (dtype() == DType::kFloat16 && std::abs(value) > kLargestFloat16) {
          ASSERT_EQ(out.at(row, axis), std::copysign(std::numeric_limits<double>::infinity(), value));
        } else {
          ASSERT_NEAR(out.at(row, axis), value, Tolerance(dtype(), std::abs(value)));
        }
      }
    }
  }
}

TEST_P(SiteCoordinatesTest, NoSitesAreNoWork) {
  const DeviceMatrix out(device(), dtype(), Matrix(0, 3, {}, nullptr));
  const SiteCoordinatesParams params{.out = out.View()};
  if (device() == Device::kCpu) {
    ThreadPool pool(3);
    cpu::SiteCoordinates(params, pool);
  } else if constexpr (kHasCuda) {
    ExpectCudaSuccess(cuda::SiteCoordinates(params, TestStream()));
  }
}

}  // namespace
}  // namespace voxserve::kernels::site_coordinates_test
