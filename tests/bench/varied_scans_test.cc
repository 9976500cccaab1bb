// Tests the inputs that varied_scans.h makes from scans: their points, fields and order.

#include "tests/bench/varied_scans.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/percentile.h"
#include "tests/support/model_folder.h"
#include "tests/support/values_file.h"

namespace voxserve::bench::varied_scans_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;

std::vector<float> Column(const PointCloud& cloud, const std::string& name) {
  std::vector<float> values(cloud.num_points());
  cloud.ReadField(*cloud.FindField(name), 0, cloud.num_points(), values.data(), 1);
  return values;
}

// Returns `count` points on circles of 1 to 50 m. The intensity is the point's index.
PointCloud Circles(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    const float radius = 1 + static_cast<float>(i % 50), angle = static_cast<float>(i);
    for (const float value : {radius * std::cos(angle), radius * std::sin(angle), 0.5f, static_cast<float>(i)}) {
      values.push_back(value);
    }
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), static_cast<uint64_t>(count));
}

// Returns three points in float16: (1, -2, 0.5), (1000, 0, 0), (0.00001, 0, 0).
PointCloud Halves() {
  const uint16_t values[] = {0x3c00, 0xc000, 0x3800, 0x63d0, 0, 0, 0x00a8, 0, 0};
  PointCloudLayout layout{.num_points = 3, .point_step = 6};
  for (uint32_t axis = 0; axis < 3; ++axis) {
    layout.fields.push_back(
        {.name = std::string(1, "xyz"[axis]), .offset = 2 * axis, .type = PointFieldType::kFloat16});
  }
  return *PointCloud::Create(layout, std::string(reinterpret_cast<const char*>(values), sizeof(values)));
}

TEST(PercentileTest, IsAValueOfTheSample) {
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0.5), 3);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({1, 2}, 1), 2);
}

TEST(VariedScanTest, SeedsDecideTheBytes) {
  const PointCloud scan = Circles(1000);
  EXPECT_EQ(VariedScan(scan, 5).bytes(), VariedScan(scan, 5).bytes());
  std::set<std::string> different;
  for (const PointCloud& cloud : VariedScans({scan, Circles(900)}, 20, 1)) different.insert(std::string(cloud.bytes()));
  EXPECT_EQ(different.size(), 20u);
}

TEST(VariedScanTest, KeepsFourFifthsOfThePointsAndTheirOtherFields) {
  const PointCloud scan = Circles(2000);
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const PointCloud varied = VariedScan(scan, seed);
    EXPECT_GT(varied.num_points(), 1500u);
    EXPECT_LE(varied.num_points(), 2000u);
    const std::vector<float> numbers = Column(varied, "intensity");
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  }
}

TEST(VariedScanTest, TurnsAndShiftsAsOneBody) {
  const PointCloud scan = Circles(1000), varied = VariedScan(scan, 3);
  const std::vector<float> numbers = Column(varied, "intensity"), z = Column(varied, "z");
  const std::vector<float> xs[] = {Column(scan, "x"), Column(varied, "x")};
  const std::vector<float> ys[] = {Column(scan, "y"), Column(varied, "y")};
  for (size_t i = 1; i < varied.num_points(); ++i) {
    const auto here = static_cast<size_t>(numbers[i]), before = static_cast<size_t>(numbers[i - 1]);
    EXPECT_NEAR(std::hypot(xs[1][i] - xs[1][i - 1], ys[1][i] - ys[1][i - 1]),
                std::hypot(xs[0][here] - xs[0][before], ys[0][here] - ys[0][before]), 1e-3f);
    EXPECT_EQ(z[i], z[0]);
    EXPECT_NEAR(z[i], 0.5f, 0.1f);
  }
  EXPECT_NE(xs[1][0], xs[0][static_cast<size_t>(numbers[0])]);
}

TEST(SideBySideTest, KeepsFloat16) {
  const PointCloud both = SideBySide({Halves(), Halves()}, 3.0f);
  EXPECT_EQ(both.layout().point_step, 6u);
  // binary16 has 1003 exactly: in this range it has every multiple of 1/2.
  EXPECT_THAT(Column(both, "x"), ElementsAre(1, 1000, FloatEq(0x1.5p-17f), 4, 1003, FloatEq(3)));
  EXPECT_THAT(Column(both, "y"), ElementsAre(-2, 0, 0, -2, 0, 0));
  EXPECT_THAT(Column(both, "z"), ElementsAre(0.5, 0, 0, 0.5, 0, 0));
}

TEST(SideBySideTest, MakesRowsAndColumns) {
  const float origin[] = {0, 0, 0};
  const PointCloud point = *PointCloud::FromFloats({"x", "y", "z"}, origin, 1);
  const PointCloud five = SideBySide({point, point, point, point, point}, 10);
  EXPECT_THAT(Column(five, "x"), ElementsAre(0, 10, 20, 0, 10));
  EXPECT_THAT(Column(five, "y"), ElementsAre(0, 0, 0, 10, 10));
}

TEST(VariedScanDeathTest, NeedsEveryAxisInMetres) {
  const float flat[] = {1, 2};
  const PointCloud no_z = *PointCloud::FromFloats({"x", "y"}, flat, 1);
  EXPECT_EXIT(VariedScan(no_z, 1), ::testing::ExitedWithCode(1), "no z in float32 or float16 metres");
  PointCloudLayout layout = Halves().layout();
  layout.fields[1].scale = 0.01;
  const PointCloud scaled = *PointCloud::Create(layout, std::string(Halves().bytes()));
  EXPECT_EXIT(Sector(scaled, 0.5), ::testing::ExitedWithCode(1), "no y in float32 or float16 metres");
}

TEST(SectorTest, KeepsAShareOfThePointsByDirection) {
  const PointCloud scan = Circles(1000), half = Sector(scan, 0.5);
  EXPECT_EQ(half.num_points(), 500u);
  const std::vector<float> x = Column(half, "x"), y = Column(half, "y");
  for (size_t i = 0; i < x.size(); ++i) EXPECT_LT(std::atan2(y[i], x[i]), 0.1f);
  EXPECT_EQ(Sector(scan, 1).bytes(), scan.bytes());
  EXPECT_EQ(Sector(scan, 0).num_points(), 0u);
}

TEST(WithTimeTest, AddsAField) {
  const PointCloud timed = WithTime(Halves());
  EXPECT_THAT(Column(timed, "t"), ElementsAre(FloatEq(-0.05f), FloatEq(0.05f), FloatEq(0.15f)));
  EXPECT_THAT(Column(timed, "y"), ElementsAre(-2, 0, 0));
}

TEST(WriteFloatsTest, WritesTheFieldsInTheirUnits) {
  const support::TemporaryFolder folder;
  const std::string path = folder.path() / "points.bin";
  ASSERT_TRUE(WriteFloats(Halves(), {"y", "x"}, path).ok());
  const absl::StatusOr<std::vector<float>> values = support::ReadValues<float>(path);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, ElementsAre(-2, 1, 0, 1000, 0, FloatEq(0x1.5p-17f)));
  EXPECT_EQ(WriteFloats(Halves(), {"ring"}, path).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteFloats(Halves(), {"x"}, folder.path() / "none" / "x.bin").code(), absl::StatusCode::kUnavailable);
}

TEST(DriveOfTest, HasEveryFrameThatIsThere) {
  for (const support::RealScan& scan :
       {support::kSemanticKittiScan, support::kNuScenesSweeps, support::kNuScenesKeyFrame, support::kWaymoFrame}) {
    if (!std::filesystem::exists(scan.path())) GTEST_SKIP() << "no " << scan.path();
    const std::vector<PointCloud> frames = DriveOf(scan);
    EXPECT_EQ(frames.size(), support::LaterFramesOf(scan).size() + 1) << scan.name;
    EXPECT_EQ(frames.front().num_points(), static_cast<uint64_t>(scan.num_points));
  }
}

TEST(RealScanNamedTest, KnowsItsNames) {
  ASSERT_TRUE(support::RealScanNamed("waymo/frame_100"));
  EXPECT_EQ(support::RealScanNamed("waymo/frame_100")->format, support::ScanFormat::kWaymo);
  EXPECT_FALSE(support::RealScanNamed("waymo"));
}

}  // namespace
}  // namespace voxserve::bench::varied_scans_test
