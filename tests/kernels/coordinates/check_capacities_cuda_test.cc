// Tests CheckCapacities on the GPU: levels that fit their capacities keep their numbers of sites; if one level does not
// fit, all become empty.

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/coordinates/check_capacities.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::check_capacities_cuda_test {
namespace {

using support::Device;
using support::DeviceArray;

struct Batch {
  std::vector<int64_t> num_sites;  // by level
  std::vector<int64_t> capacities;
  std::vector<int32_t> point_to_voxel = {0, 1, -3, 2};
  std::vector<int64_t> max_coordinate;  // [kMaxDimension]; empty: the kernel gets a null pointer
  Axes axis_bits = {0, 0, 0, 0};
};

class CheckCapacitiesTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  cudaError_t Run(const Batch& batch) {
    DeviceArray<int64_t> num_voxels(Device::kCuda, std::vector<int64_t>{batch.num_sites[0]});
    std::vector<int64_t> sites = batch.num_sites;
    sites[0] = 1'000'000;  // the kernel takes the first level's count from num_voxels
    DeviceArray<int64_t> num_sites(Device::kCuda, sites), held(Device::kCuda, std::vector<int64_t>(sites.size(), -1));
    DeviceArray<int64_t> max_coordinate(Device::kCuda, batch.max_coordinate);
    DeviceArray<int32_t> point_to_voxel(Device::kCuda, batch.point_to_voxel);
    CheckCapacitiesParams params{.num_levels = static_cast<int32_t>(sites.size()),
                                 .num_voxels = num_voxels.data(),
                                 .num_sites = num_sites.data(),
                                 .max_coordinate = batch.max_coordinate.empty() ? nullptr : max_coordinate.data(),
                                 .axis_bits = batch.axis_bits,
                                 .num_points = static_cast<int64_t>(batch.point_to_voxel.size()),
                                 .point_to_voxel = point_to_voxel.data(),
                                 .held = held.data()};
    for (size_t i = 0; i < batch.capacities.size() && i < kMostHeldLevels; ++i)
      params.capacities[i] = batch.capacities[i];
    const cudaError_t error = cuda::CheckCapacities(params, nullptr);
    held_ = held.ToHost();
    point_to_voxel_ = point_to_voxel.ToHost();
    return error;
  }
  void ExpectHeld(const Batch& batch) {
    ASSERT_EQ(Run(batch), cudaSuccess);
    EXPECT_EQ(held_, batch.num_sites);
    EXPECT_EQ(point_to_voxel_, batch.point_to_voxel);
  }
  void ExpectEmptied(const Batch& batch) {
    ASSERT_EQ(Run(batch), cudaSuccess);
    EXPECT_EQ(held_, std::vector<int64_t>(batch.num_sites.size(), 0));
    EXPECT_EQ(point_to_voxel_, std::vector<int32_t>(batch.point_to_voxel.size(), -1));
  }

  std::vector<int64_t> held_;
  std::vector<int32_t> point_to_voxel_;
};

TEST_F(CheckCapacitiesTest, LevelsThatFitKeepTheirSites) {
  ExpectHeld({.num_sites = {3, 2, 0}, .capacities = {3, 2, 0}});
  ExpectHeld({.num_sites = {3, 2, 1}, .capacities = {300, 200, 100}});
}

TEST_F(CheckCapacitiesTest, OneSiteTooManyEmptiesAllLevels) {
  for (size_t level = 0; level < 3; ++level) {
    Batch batch{.num_sites = {3, 2, 1}, .capacities = {3, 2, 1}};
    --batch.capacities[level];
    ExpectEmptied(batch);
  }
}

TEST_F(CheckCapacitiesTest, CoordinatesAreHeldToTheirBits) {
  const Batch batch{.num_sites = {3}, .capacities = {3}, .axis_bits = {5, 0, 3, 1}};
  const auto reaching = [&](std::vector<int64_t> max_coordinate) {
    Batch far = batch;
    far.max_coordinate = std::move(max_coordinate);
    return far;
  };
  ExpectHeld(reaching({0, 0, 0, 0}));
  ExpectHeld(reaching({30, 1 << 20, 6, 0}));  // an axis of 0 bits is not checked
  for (const int64_t coordinate : {31, 32, 1 << 20}) ExpectEmptied(reaching({coordinate, 0, 0, 0}));
  ExpectEmptied(reaching({0, 0, 7, 0}));
  ExpectEmptied(reaching({0, 0, 0, 1}));
  ExpectHeld(batch);  // without max_coordinate nothing is checked
}

TEST_F(CheckCapacitiesTest, MostLevelsAndManyPoints) {
  Batch batch{.num_sites = std::vector<int64_t>(kMostHeldLevels, 7),
              .capacities = std::vector<int64_t>(kMostHeldLevels, 7),
              .point_to_voxel = std::vector<int32_t>(200'000, 5)};
  ExpectHeld(batch);
  batch.capacities.back() = 6;
  ExpectEmptied(batch);
}

TEST_F(CheckCapacitiesTest, NoPoints) { ExpectHeld({.num_sites = {0, 0}, .capacities = {1, 1}, .point_to_voxel = {}}); }

TEST_F(CheckCapacitiesTest, TooManyLevelsAreRefused) {
  EXPECT_EQ(Run({.num_sites = std::vector<int64_t>(kMostHeldLevels + 1, 1)}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::check_capacities_cuda_test
