#include "client/cpp/view/annotated_scan.h"

#include <cmath>
#include <limits>

#include "client/cpp/view/count_text.h"
#include "gmock/gmock.h"

namespace voxserve::client::annotated_scan_test {
namespace {

using ::testing::ElementsAre;

std::vector<v1::ClassInfo> Classes(const std::vector<std::string>& names) {
  std::vector<v1::ClassInfo> classes;
  for (const std::string& name : names) {
    v1::ClassInfo& info = classes.emplace_back();
    info.set_id(static_cast<uint32_t>(classes.size() - 1));
    info.set_name(name);
    info.set_color_rgb(0x112233);
  }
  return classes;
}

TEST(AnnotatedScanTest, CountsTheMostFrequentClassFirst) {
  const auto counts = CountClasses({1, 1, 0, 255, 1, 7, 7, 255}, 255, Classes({"road", "car", "sign"}));
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].name, "car");
  EXPECT_EQ(counts[0].num_points, 3u);
  EXPECT_DOUBLE_EQ(counts[0].share, 3.0 / 8);
  EXPECT_EQ(counts[0].color_rgb, 0x112233u);
  EXPECT_EQ(counts[1].name, "class 7");  // the model has no name for this class
  EXPECT_EQ(counts[2].name, "road");
  EXPECT_TRUE(CountClasses({}, 255, {}).empty());
  EXPECT_TRUE(CountClasses({255, 255}, 255, {}).empty());
}

TEST(AnnotatedScanTest, TakesTheAxesFromTheCloud) {
  const float points[] = {1, 2, 3, 4, 5, 6};
  v1::ModelVersion model;
  model.set_ignore_label(9);
  const auto scan = AnnotatedScan::WithLabels(PointCloudFromFloats({"z", "x", "y"}, points, 2), {0, 1}, model);
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_THAT(scan->x, ElementsAre(2, 5));
  EXPECT_THAT(scan->z, ElementsAre(1, 4));
  EXPECT_EQ(scan->ignore_label, 9);
  EXPECT_FALSE(AnnotatedScan::WithLabels(PointCloudFromFloats({"x", "y", "z"}, points, 2), {0}, model).ok());
  EXPECT_FALSE(AnnotatedScan::WithLabels(PointCloudFromFloats({"x", "y", "t"}, points, 2), {0, 1}, model).ok());
}

TEST(AnnotatedScanTest, TheExtentLeavesFarPointsOut) {
  AnnotatedScan scan;
  for (int x = -40; x <= 40; ++x) {
    for (int y = -20; y <= 20; ++y) {
      scan.x.push_back(static_cast<float>(x));
      scan.y.push_back(static_cast<float>(y));
    }
  }
  for (int i = 0; i < 20; ++i) {
    scan.x.push_back(300 + static_cast<float>(i));
    scan.y.push_back(0);
  }
  scan.x.insert(scan.x.end(), {std::numeric_limits<float>::quiet_NaN(), 1e30f});
  scan.y.insert(scan.y.end(), {0, std::numeric_limits<float>::infinity()});
  const Extent extent = DenseExtent(scan);
  EXPECT_LT(extent.max_x, 50);
  EXPECT_GT(extent.max_x, 30);
  EXPECT_GT(extent.min_x, -50);
  EXPECT_LT(extent.min_x, -30);
  EXPECT_NEAR(extent.width(), 40, 8);
}

TEST(AnnotatedScanTest, TheExtentOfNothingIsTheSensorsSurroundings) {
  const Extent extent = DenseExtent(AnnotatedScan());
  EXPECT_LT(extent.min_x, 0);
  EXPECT_GT(extent.max_y, 0);
}

TEST(CountTextTest, SeparatesThousands) {
  EXPECT_EQ(WithSeparators(0), "0");
  EXPECT_EQ(WithSeparators(999), "999");
  EXPECT_EQ(WithSeparators(1000), "1,000");
  EXPECT_EQ(WithSeparators(1234567), "1,234,567");
}

}  // namespace
}  // namespace voxserve::client::annotated_scan_test
