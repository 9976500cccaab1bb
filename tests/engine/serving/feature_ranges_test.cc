// Tests which clouds get a warning because their values are in another unit than the network was trained on.

#include "engine/serving/feature_ranges.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace voxserve::feature_ranges_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

VoxelizeOp Network() {
  VoxelizeOp op;
  op.axes = {"x", "y", "z"};
  op.features = {{.name = "x", .unit = "m"},
                 {.name = "intensity", .unit = "1", .scale = 255, .range = ValueRange{.low = 0, .high = 1}}};
  return op;
}

// Returns a cloud of points whose x, y and z are 200, with these intensities.
PointCloud CloudOf(const std::vector<float>& intensities) {
  std::vector<float> points;
  for (const float intensity : intensities) points.insert(points.end(), {200, 200, 200, intensity});
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), intensities.size());
}

std::vector<FeatureWarning> WarningsOf(const std::vector<float>& intensities) {
  return FindFeatureWarnings(Network(), CloudOf(intensities));
}

TEST(FeatureRangesTest, ValuesInTheRangeAreExpected) {
  EXPECT_THAT(WarningsOf({}), IsEmpty());
  EXPECT_THAT(WarningsOf({0, 0.5, 1, 1.05f, -0.05f}), IsEmpty());
  EXPECT_THAT(WarningsOf(std::vector<float>(100'000, 1)), IsEmpty());
  EXPECT_THAT(WarningsOf({kNaN, kNaN, std::numeric_limits<float>::infinity()}), IsEmpty());
}

TEST(FeatureRangesTest, AnotherUnitIsWarnedOf) {
  const std::vector<FeatureWarning> warnings = WarningsOf({0, 128, 255, kNaN, -3, 1});
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_EQ(warnings[0].feature, "intensity");
  EXPECT_EQ(warnings[0].range.low, 0);
  EXPECT_EQ(warnings[0].range.high, 1);
  EXPECT_EQ(warnings[0].smallest, -3);
  EXPECT_EQ(warnings[0].largest, 255);
  EXPECT_EQ(warnings[0].num_checked, 5);
  EXPECT_EQ(warnings[0].num_outside, 3);
}

TEST(FeatureRangesTest, AFewValuesOutsideAreNot) {
  std::vector<float> intensities(1000, 0.5f);
  for (int i = 0; i < 10; ++i) intensities[static_cast<size_t>(i * 100)] = 7;
  EXPECT_THAT(WarningsOf(intensities), IsEmpty());
  intensities[1] = 7;
  EXPECT_THAT(WarningsOf(intensities), SizeIs(1));
}

TEST(FeatureRangesTest, LargeCloudsAreLookedAtAllOver) {
  for (const size_t num_points : {4095u, 4096u, 4097u, 100'000u, 1'000'003u}) {
    std::vector<float> intensities(num_points, 0.5f);
    // A tenth of the points is wrong, wherever it lies.
    for (size_t begin = 0; begin + num_points / 10 <= num_points; begin += num_points / 7) {
      std::vector<float> wrong = intensities;
      for (size_t i = 0; i < num_points / 10; ++i) wrong[begin + i] = 90;
      const std::vector<FeatureWarning> warnings = WarningsOf(wrong);
      ASSERT_THAT(warnings, SizeIs(1)) << num_points << " " << begin;
      EXPECT_EQ(warnings[0].num_checked, static_cast<int64_t>(std::min<size_t>(num_points, 4096)));
      const double num_checked = static_cast<double>(warnings[0].num_checked);
      EXPECT_NEAR(static_cast<double>(warnings[0].num_outside) / num_checked, 0.1, 0.02);
    }
  }
}

TEST(FeatureRangesTest, TheFieldsOwnScaleComesFirst) {
  std::vector<float> points;
  for (int i = 0; i < 10; ++i) points.insert(points.end(), {1, 1, 1, 25.0f * static_cast<float>(i)});
  PointCloudLayout layout = {.num_points = 10, .point_step = 16, .fields = {}};
  for (const char* name : {"x", "y", "z"}) {
    layout.fields.push_back({.name = name, .offset = static_cast<uint32_t>(4 * layout.fields.size())});
  }
  layout.fields.push_back({.name = "intensity", .offset = 12, .scale = 1.0 / 255});
  const std::string_view bytes(reinterpret_cast<const char*>(points.data()), points.size() * sizeof(float));
  EXPECT_THAT(FindFeatureWarnings(Network(), *PointCloud::Create(layout, bytes)), IsEmpty());
  layout.fields[3].scale = 1;
  EXPECT_THAT(FindFeatureWarnings(Network(), *PointCloud::Create(layout, bytes)), SizeIs(1));
}

TEST(FeatureRangesTest, FeaturesWithoutARangeOrAFieldAreNotLookedAt) {
  VoxelizeOp op = Network();
  op.features[1].range.reset();
  EXPECT_THAT(FindFeatureWarnings(op, CloudOf({255, 255})), IsEmpty());
  op = Network();
  op.features[1].name = "reflectivity";
  op.features[1].default_value = 7.0f;
  EXPECT_THAT(FindFeatureWarnings(op, CloudOf({255, 255})), IsEmpty());
}

}  // namespace
}  // namespace voxserve::feature_ranges_test
