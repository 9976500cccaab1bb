// Tests HoldSites on the GPU: levels that fit their capacities keep their numbers of sites; if one level does not fit,
// all become empty.

#include <vector>

#include "gtest/gtest.h"
#include "kernels/coordinates/hold_sites.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {
namespace {

using support::Device;
using support::DeviceArray;

struct Batch {
  std::vector<int64_t> num_sites;  // by level
  std::vector<int64_t> capacities;
  std::vector<int32_t> point_to_voxel = {0, 1, -3, 2};
  int64_t max_coordinate = -1;  // -1: the kernel gets a null pointer
  int32_t axis_bits = 0;
};

class HoldSitesTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  cudaError_t Run(const Batch& batch) {
    DeviceArray<int64_t> num_voxels(Device::kCuda, std::vector<int64_t>{batch.num_sites[0]});
    std::vector<int64_t> sites = batch.num_sites;
    sites[0] = 1'000'000;  // the kernel takes the first level's count from num_voxels
    DeviceArray<int64_t> num_sites(Device::kCuda, sites), held(Device::kCuda, std::vector<int64_t>(sites.size(), -1));
    DeviceArray<int64_t> max_coordinate(Device::kCuda, std::vector<int64_t>{batch.max_coordinate});
    DeviceArray<int32_t> point_to_voxel(Device::kCuda, batch.point_to_voxel);
    HoldSitesParams params{.num_levels = static_cast<int32_t>(sites.size()),
                           .num_voxels = num_voxels.data(),
                           .num_sites = num_sites.data(),
                           .max_coordinate = batch.max_coordinate < 0 ? nullptr : max_coordinate.data(),
                           .axis_bits = batch.axis_bits,
                           .num_points = static_cast<int64_t>(batch.point_to_voxel.size()),
                           .point_to_voxel = point_to_voxel.data(),
                           .held = held.data()};
    for (size_t i = 0; i < batch.capacities.size() && i < kMostHeldLevels; ++i)
      params.capacities[i] = batch.capacities[i];
    const cudaError_t error = cuda::HoldSites(params, nullptr);
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

TEST_F(HoldSitesTest, LevelsThatFitKeepTheirSites) {
  ExpectHeld({.num_sites = {3, 2, 0}, .capacities = {3, 2, 0}});
  ExpectHeld({.num_sites = {3, 2, 1}, .capacities = {300, 200, 100}});
}

TEST_F(HoldSitesTest, OneSiteTooManyEmptiesAllLevels) {
  for (size_t level = 0; level < 3; ++level) {
    Batch batch{.num_sites = {3, 2, 1}, .capacities = {3, 2, 1}};
    --batch.capacities[level];
    ExpectEmptied(batch);
  }
}

TEST_F(HoldSitesTest, CoordinatesAreHeldToTheirBits) {
  const Batch batch{.num_sites = {3}, .capacities = {3}, .axis_bits = 5};
  for (const auto& [coordinate, fits] :
       {std::pair<int64_t, bool>{0, true}, {31, true}, {32, false}, {1 << 20, false}}) {
    Batch reaching = batch;
    reaching.max_coordinate = coordinate;
    fits ? ExpectHeld(reaching) : ExpectEmptied(reaching);
  }
  ExpectHeld(batch);  // without max_coordinate nothing is checked
}

TEST_F(HoldSitesTest, MostLevelsAndManyPoints) {
  Batch batch{.num_sites = std::vector<int64_t>(kMostHeldLevels, 7),
              .capacities = std::vector<int64_t>(kMostHeldLevels, 7),
              .point_to_voxel = std::vector<int32_t>(200'000, 5)};
  ExpectHeld(batch);
  batch.capacities.back() = 6;
  ExpectEmptied(batch);
}

TEST_F(HoldSitesTest, NoPoints) { ExpectHeld({.num_sites = {0, 0}, .capacities = {1, 1}, .point_to_voxel = {}}); }

TEST_F(HoldSitesTest, TooManyLevelsAreRefused) {
  EXPECT_EQ(Run({.num_sites = std::vector<int64_t>(kMostHeldLevels + 1, 1)}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels
