// Tests poses and transforms between sweeps, the number of points of several sweeps, and which networks can run sweeps.

#include "engine/tensor/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error_reason.h"

namespace voxserve::sweep_test {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kHalf = std::sqrt(0.5);  // w and z of the quaternion of a quarter turn about z

TEST(PoseTest, GoodPoses) {
  EXPECT_TRUE(CheckPose({}).ok());
  EXPECT_TRUE(CheckPose({.x = -1e9, .y = 1e9, .qw = 0, .qz = -1e-300}).ok());
  EXPECT_TRUE(CheckPose({.qw = 1e300, .qx = 1e300}).ok());
}

TEST(PoseTest, BadPoses) {
  const std::vector<Pose> bad = {
      {.qw = 0},    {.x = kNan},        {.y = kInfinity}, {.z = -kInfinity}, {.qw = kNan}, {.qx = kInfinity},
      {.qy = kNan}, {.qz = -kInfinity}, {.x = 1.1e9},     {.y = -1.1e9},     {.z = 1e300},
  };
  for (const Pose& pose : bad) {
    const absl::Status status = CheckPose(pose);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kBadPose) << status;
  }
  EXPECT_THAT(std::string(CheckPose({.qw = 0}).message()), HasSubstr("quaternion of 0"));
}

TEST(RelativeTransformTest, TurnsAndMoves) {
  // The vehicle looks along its x. Then it stood at (10, 0, 1) looking along the world's y; now it stands at (10, 5, 1)
  // and looks along -x.
  const Pose then = {.x = 10, .z = 1, .qw = kHalf, .qz = kHalf};
  const Pose now = {.x = 10, .y = 5, .z = 1, .qw = 0, .qz = 1};
  // A point at (10, 7, 1) was 7 m ahead of the vehicle then, and is 2 m to its right now.
  const Transform transform = RelativeTransform(then, now);
  const Transform expected = {0, 1, 0, 0, -1, 0, 0, 5, 0, 0, 1, 0};
  EXPECT_THAT(transform, Pointwise(FloatNear(1e-6f), expected));
  EXPECT_NEAR(transform[4] * 7 + transform[7], -2, 1e-6);
}

TEST(RelativeTransformTest, SamePoseIsTheIdentityToRounding) {
  const Pose pose = {.x = 5e6, .y = -3e6, .z = 100, .qw = 0.3, .qx = -0.7, .qy = 0.2, .qz = 0.9};
  EXPECT_THAT(RelativeTransform(pose, pose), Pointwise(FloatNear(1e-6f), kIdentity));
}

TEST(RelativeTransformTest, QuaternionsCountNormalised) {
  const Pose to = {.x = 1, .y = 2, .z = 3, .qw = 0.1, .qx = 0.2, .qy = -0.3, .qz = 0.4};
  const Pose from = {.qw = 1, .qx = 2, .qy = 3, .qz = 4};
  const Transform expected = RelativeTransform(from, to);
  for (const double scale : {-1.0, 0.25, 1e-300, 1e300}) {
    Pose scaled = from;
    for (double* value : {&scaled.qw, &scaled.qx, &scaled.qy, &scaled.qz}) *value *= scale;
    EXPECT_THAT(RelativeTransform(scaled, to), Pointwise(FloatNear(1e-6f), expected)) << scale;
  }
}

// The positions are a metre apart. They are so far from the origin that a float32 could not tell them apart.
TEST(RelativeTransformTest, FarFromTheOriginNothingIsLost) {
  const Transform transform = RelativeTransform({.x = 5e8 + 1, .y = -5e8}, {.x = 5e8, .y = -5e8 + 0.125});
  EXPECT_EQ(transform[3], 1);
  EXPECT_EQ(transform[7], -0.125f);
  EXPECT_EQ(transform[11], 0);
}

TEST(PlacedSweepTest, PointsOfAllSweeps) {
  EXPECT_EQ(NumPoints({}), 0u);
  const std::vector<float> xyz(9);
  const auto sweep = [&](uint64_t num_points) {
    return PlacedSweep{.sweep = std::make_shared<const Sweep>(
                           Sweep{.cloud = *PointCloud::FromFloats({"x", "y", "z"}, xyz.data(), num_points)})};
  };
  EXPECT_EQ(NumPoints({sweep(3), sweep(0), sweep(2)}), 5u);
}

TEST(SweepObstacleTest, NetworksNeedSpatialAxesAndTheAgeFeature) {
  struct Feature {
    std::string name;
  };
  const std::vector<Feature> features = {{"x"}, {"intensity"}, {"age"}};
  const auto obstacle = [&](const std::vector<std::string>& axes, std::string_view age_feature) {
    return ObstacleToSweeps(axes, AgeFeatures(axes, features), age_feature);
  };
  EXPECT_EQ(obstacle({"x", "y", "z"}, ""), SweepObstacle::kNone);
  EXPECT_EQ(obstacle({"z", "x", "y"}, "age"), SweepObstacle::kNone);
  EXPECT_EQ(obstacle({"x", "y"}, ""), SweepObstacle::kAxes);
  EXPECT_EQ(obstacle({"x", "y", "y"}, "age"), SweepObstacle::kAxes);
  EXPECT_EQ(obstacle({"x", "y", "z", "t"}, "age"), SweepObstacle::kAxes);
  EXPECT_EQ(obstacle({"x", "y", "z"}, "dt"), SweepObstacle::kAgeFeature);
  EXPECT_EQ(obstacle({"x", "y", "z"}, "x"), SweepObstacle::kAgeFeature);
}

}  // namespace
}  // namespace voxserve::sweep_test
