// Tests that every real scan (real_scans.h) has its number of points, and that its fields have plausible values.

#include "tests/support/real_scans.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace voxserve::support::real_scans_test {
namespace {

class RealScansTest : public ::testing::TestWithParam<RealScan> {};

TEST_P(RealScansTest, HasItsPointsAndFeatures) {
  const RealScan& scan = GetParam();
  if (!std::filesystem::exists(scan.path())) GTEST_SKIP() << "no " << scan.path();
  const absl::StatusOr<PointCloud> cloud = ReadScan(scan.format, scan.path());
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), static_cast<uint64_t>(scan.num_points));
  for (const std::string& name : FeaturesOf(scan.format)) {
    SCOPED_TRACE(name);
    const PointField* field = cloud->FindField(name);
    ASSERT_NE(field, nullptr);
    std::vector<float> values(cloud->num_points());
    cloud->ReadField(*field, 0, cloud->num_points(), values.data(), 1);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    // A field that was read with a wrong type or offset has values outside these ranges (m for x, y and z).
    const bool is_axis = name == "x" || name == "y" || name == "z";
    EXPECT_GE(*low, is_axis ? -110.0f : 0.0f);
    EXPECT_LE(*high, is_axis ? 110.0f : 1.5f);
    EXPECT_GT(*high - *low, 0.3f);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RealScansTest,
                         ::testing::Values(kSemanticKittiScan, kNuScenesSweeps, kNuScenesKeyFrame, kWaymoFrame),
                         [](const auto& scan) {
                           std::string name = scan.param.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '/' || c == '-'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace voxserve::support::real_scans_test
