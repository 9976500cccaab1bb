// Tests DeviceLevels: which levels know the first input row of each site, from which their rulebooks follow without a
// search, how far their sites reach, and how levels are held to their capacities.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <variant>

#include "engine/geometry/device_levels.h"
#include "engine/runtime/device_pool.h"
#include "tests/support/test_device.h"

namespace voxserve::device_levels_cuda_test {
namespace {

using testing::ElementsAre;

constexpr int64_t kNumPoints = 1000;

class DeviceLevelsTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    auto pool = DevicePool::Create({.limit_bytes = int64_t{256} << 20});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto context = CudaContext::Create(pool_.get());
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    memory_.Begin(*context_);
    sizes_.Begin({.num_samples = 1, .num_levels = 4}, memory_);
    ASSERT_TRUE(sizes_.TakeMemory().ok());
    levels_.Begin(sizes_, memory_);
    ASSERT_TRUE(levels_.AddVoxels(kNumPoints).ok());
  }
  void TearDown() override {
    if (context_ == nullptr) return;
    EXPECT_TRUE(context_->stream.view().Synchronize().ok());
  }

  void AddLevel(int level, const kernels::OutputCoordinatesParams& params) {
    const absl::Status added = levels_.Add(level, 0, params);
    EXPECT_TRUE(added.ok()) << added;
  }
  // Adds level 1 by a rule, and returns true if it knows the first input rows of its sites.
  bool KnowsInputs(kernels::CoordinateRule rule, int32_t kernel_size, int32_t stride) {
    kernels::OutputCoordinatesParams params{.rule = rule};
    params.geometry.kernel_size = {kernel_size, kernel_size, kernel_size, 1};
    params.geometry.stride = {stride, stride, stride, 1};
    AddLevel(1, params);
    return std::get<kernels::OutputCoordinatesParams>(levels_.at(1).made_by).first_in_rows != nullptr;
  }

  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<CudaContext> context_;
  GeometryMemory memory_;
  DeviceSizes sizes_;
  DeviceLevels levels_;
};

// Under kFloor a level's sites follow from the stride alone, so its rule may say nothing about the kernel.
TEST_F(DeviceLevelsTest, SitesThatAreQuotientsKnowTheirInputs) {
  EXPECT_TRUE(KnowsInputs(kernels::CoordinateRule::kFloor, 1, 2));
  EXPECT_TRUE(KnowsInputs(kernels::CoordinateRule::kFloor, 2, 2));
  EXPECT_TRUE(KnowsInputs(kernels::CoordinateRule::kExpand, 2, 2));
  EXPECT_TRUE(KnowsInputs(kernels::CoordinateRule::kFloor, 4, 4));
}

TEST_F(DeviceLevelsTest, OtherSitesDoNotKnowTheirInputs) {
  EXPECT_FALSE(KnowsInputs(kernels::CoordinateRule::kExpand, 3, 2));
  EXPECT_FALSE(KnowsInputs(kernels::CoordinateRule::kFloor, 3, 3));
}

TEST_F(DeviceLevelsTest, KnowHowFarTheirSitesReach) {
  kernels::OutputCoordinatesParams expand{.rule = kernels::CoordinateRule::kExpand};
  expand.geometry = {.kernel_size = {3, 5, 3, 1}, .stride = {2, 1, 2, 1}, .padding = {0, 4, 0, 0}};
  for (const bool is_known : {true, false}) {
    SCOPED_TRACE(is_known);
    levels_.Begin(sizes_, memory_);
    ASSERT_TRUE(levels_.AddVoxels(kNumPoints, {63, is_known ? 40 : 0, 7, 0}).ok());
    AddLevel(1, expand);
    ASSERT_TRUE(levels_.AddUnion(2, 0, 1).ok());
    ASSERT_TRUE(levels_.AddFiltered(3, 1, {}).ok());
    EXPECT_THAT(levels_.at(1).extent, is_known ? ElementsAre(32, 44, 4, 0) : ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(levels_.at(2).extent, is_known ? ElementsAre(63, 44, 7, 0) : ElementsAre(0, 0, 0, 0));
    EXPECT_EQ(levels_.at(3).extent, levels_.at(1).extent);
  }
}

// A network that prunes holds its levels several times. The voxels do not fit their room, but level 1 would fit its
// own.
TEST_F(DeviceLevelsTest, ABatchThatDoesNotFitHasNoSitesEverAfter) {
  KnowsInputs(kernels::CoordinateRule::kFloor, 2, 2);
  const auto point_to_voxel = memory_.Take<int32_t>(kNumPoints);
  ASSERT_TRUE(point_to_voxel.ok()) << point_to_voxel.status();
  const DeviceSizes::Arrays& sizes = sizes_.on_device();
  constexpr support::Device kCuda = support::Device::kCuda;
  const int64_t num_voxels = 500, num_coarse = 10;
  ASSERT_TRUE(context_->stream.view().Synchronize().ok());
  support::CopyToDevice(kCuda, sizes.sample_begin + 1, &num_voxels, sizeof(num_voxels));
  support::CopyToDevice(kCuda, sizes.num_sites + 1, &num_coarse, sizeof(num_coarse));
  BatchCapacities capacities;
  capacities.sites = {100, 50, 0, 0};
  for (int segment = 0; segment < 2; ++segment) {
    SCOPED_TRACE(segment);
    ASSERT_TRUE(levels_.Hold(capacities, kNumPoints, *point_to_voxel).ok());
    ASSERT_TRUE(context_->stream.view().Synchronize().ok());
    int64_t held[2] = {-1, -1};
    support::CopyFromDevice(kCuda, held, sizes.held_sites, sizeof(held));
    EXPECT_EQ(held[0], 0);
    EXPECT_EQ(held[1], 0);
    int32_t voxel = 0;
    support::CopyFromDevice(kCuda, &voxel, *point_to_voxel + kNumPoints - 1, sizeof(voxel));
    EXPECT_EQ(voxel, -1);
  }
}

}  // namespace
}  // namespace voxserve::device_levels_cuda_test
