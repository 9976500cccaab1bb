// Tests the parts of BatchGeometry that no kernel has: limits of memory and coordinates, and counts over all levels.

#include "engine/geometry/batch_geometry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve::batch_geometry_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class BatchGeometryTest : public testing::Test {
 protected:
  // Voxelizes samples, each a list of x, y, z, with voxels of 1 m. Coordinates are rounded down and the origin is 0.
  absl::Status Voxelize(const std::vector<std::vector<float>>& samples) {
    std::vector<float> points;
    std::vector<int64_t> point_begin = {0};
    for (const std::vector<float>& sample : samples) {
      points.insert(points.end(), sample.begin(), sample.end());
      point_begin.push_back(static_cast<int64_t>(points.size() / 3));
    }
    kernels::VoxelizeParams params{.rounding = kernels::VoxelRounding::kFloor, .origin = kernels::VoxelOrigin::kZero};
    params.num_points = point_begin.back();
    params.num_samples = static_cast<int32_t>(samples.size());
    params.point_begin = point_begin.data();
    params.axes = kernels::ConstRows::Packed(points.data(), kernels::DType::kFloat32, params.num_points, 3);
    return geometry_.Voxelize(params, 0, kernels::VoxelOrder::kNearest);
  }

  kernels::ThreadPool pool_{2};
  BatchGeometry geometry_{&pool_};
};

TEST_F(BatchGeometryTest, SitesBeyondTheLimitsAreCountedPerSampleOverAllLevels) {
  const float last = static_cast<float>(kernels::CoordinateKey(3).max_coordinate());
  kernels::OutputCoordinatesParams rule{.rule = kernels::CoordinateRule::kExpand};
  rule.geometry = {.kernel_size = {3, 1, 3, 1}, .stride = {2, 1, 1, 1}, .padding = {1, 0, 1, 0}};
  ASSERT_TRUE(Voxelize({{0, 0, 5}, {0, 0, last}, {}}).ok());
  ASSERT_TRUE(geometry_.MakeLevel(1, 0, rule).ok());
  EXPECT_THAT(geometry_.num_beyond_limits, ElementsAre(0, 1, 0));
  // The kernel reaches one cell further on z, so a site at the last coordinate produces one output beyond the limit.
  // Level 1 also has a site at the last coordinate, so making level 2 adds one to the count.
  ASSERT_TRUE(geometry_.MakeLevel(2, 1, rule).ok());
  EXPECT_THAT(geometry_.num_beyond_limits, ElementsAre(0, 2, 0));
  ASSERT_TRUE(Voxelize({{0, 0, 5}}).ok());
  EXPECT_THAT(geometry_.num_beyond_limits, ElementsAre(0));
}

TEST_F(BatchGeometryTest, ABatchNeedsTheSameWhateverRanBefore) {
  std::vector<float> line;
  for (int i = 0; i < 1000; ++i) line.insert(line.end(), {static_cast<float>(i), 0, 0});
  const auto run = [&](const std::vector<float>& points, int num_levels, kernels::MapSearch search) {
    kernels::VoxelizeParams unsampled;
    geometry_.SamplePoints({}, &unsampled);
    ASSERT_TRUE(Voxelize({points}).ok());
    kernels::OutputCoordinatesParams rule{.rule = kernels::CoordinateRule::kExpand};
    rule.geometry = {.kernel_size = {3, 1, 1, 1}, .stride = {2, 1, 1, 1}, .padding = {1, 0, 0, 0}};
    for (int level = 0; level < num_levels; ++level) {
      if (level > 0) {
        ASSERT_TRUE(geometry_.MakeLevel(level, level - 1, rule).ok());
      }
      ASSERT_TRUE(geometry_
                      .MakeRulebook(level, {.in_level = level,
                                            .out_level = level,
                                            .geometry = {.kernel_size = {3, 1, 1, 1}},
                                            .search = search,
                                            .max_grid_bytes = 1 << 20})
                      .ok());
    }
  };
  const std::vector<float> few(line.begin(), line.begin() + 300);
  for (const auto search : {kernels::MapSearch::kMerge, kernels::MapSearch::kGrid, kernels::MapSearch::kHash}) {
    run(few, 2, search);
    const int64_t alone = geometry_.needed_bytes();
    EXPECT_GT(alone, 0);
    for (const auto other : {kernels::MapSearch::kGrid, kernels::MapSearch::kHash}) {
      run(line, 4, other);
      EXPECT_GT(geometry_.needed_bytes(), alone);
      run(few, 2, search);
      EXPECT_EQ(geometry_.needed_bytes(), alone);
    }
  }
}

TEST_F(BatchGeometryTest, OrdersCountAsLongAsTheirBatchLasts) {
  // Rows ascend by (x, y, z). Morton's order is (1, 0, 0), (1, 0, 1), (0, 0, 3), (2, 0, 0), with codes 4, 5, 9, 32.
  ASSERT_TRUE(Voxelize({{2, 0, 0, 1, 0, 1, 0, 0, 3, 1, 0, 0}, {}, {5, 5, 5}}).ok());
  const int64_t without = geometry_.needed_bytes();
  const SiteOrderSpec z = {.level = 0, .curve = kernels::Curve::kZ};
  const SiteOrderSpec hilbert = {.level = 0, .curve = kernels::Curve::kHilbert, .depth_level = 0};
  ASSERT_TRUE(geometry_.MakeOrders({{.index = 1, .spec = z}, {.index = 0, .spec = hilbert}}).ok());
  EXPECT_THAT(geometry_.row_of_place(1), ElementsAre(1, 2, 0, 3, 4));
  EXPECT_EQ(geometry_.row_of_place(0).size(), 5u);
  EXPECT_EQ(geometry_.row_of_place(0).back(), 4);
  EXPECT_EQ(geometry_.needed_bytes(), without + 2 * 5 * static_cast<int64_t>(sizeof(int32_t)));
  ASSERT_TRUE(Voxelize({{2, 0, 0, 1, 0, 1, 0, 0, 3, 1, 0, 0}, {}, {5, 5, 5}}).ok());
  EXPECT_EQ(geometry_.needed_bytes(), without);
}

TEST_F(BatchGeometryTest, LevelThatNoMemoryHoldsIsRefusedBeforeItIsMade) {
  std::vector<float> line;
  for (int i = 0; i < 64; ++i) line.insert(line.end(), {static_cast<float>(i), 0, 0});
  ASSERT_TRUE(Voxelize({line}).ok());
  kernels::OutputCoordinatesParams rule{.rule = kernels::CoordinateRule::kPadded};
  rule.geometry = {.kernel_size = {257, 257, 257, 1}, .padding = {128, 128, 128, 0}};
  rule.out_shape = {100000, 100000, 100000, 0};
  const absl::Status status = geometry_.MakeLevel(1, 0, rule);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  // Each of the 64 * 257^3 candidates needs 16 bytes of scratch.
  EXPECT_THAT(status.message(), HasSubstr("1086373952 candidates from 64 sites"));
  EXPECT_THAT(status.message(), HasSubstr("17381983232 bytes of scratch; the limit is 17179869184"));
  EXPECT_THAT(geometry_.keys(1), IsEmpty());

  // A network that needs less memory still runs.
  ASSERT_TRUE(geometry_.MakeLevel(1, 0, {.geometry = {.stride = {2, 2, 2, 1}}}).ok());
  EXPECT_EQ(geometry_.num_sites(1), 32);
}

}  // namespace
}  // namespace voxserve::batch_geometry_test
