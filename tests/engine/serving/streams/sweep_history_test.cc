// Tests SweepHistory: which sweeps it keeps, where it places older sweeps, and which clouds it refuses.

#include "engine/serving/streams/sweep_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"

namespace voxserve::sweep_history_test {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

constexpr int64_t kPointBytes = 12;

PointCloud Cloud(uint64_t num_points) {
  const std::vector<float> xyz(num_points * 3, 1.0f);
  return *PointCloud::FromFloats({"x", "y", "z"}, xyz.data(), num_points);
}

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// Returns the number of points of each returned sweep. Tests give every cloud a different number.
std::vector<uint64_t> Points(const absl::StatusOr<std::vector<PlacedSweep>>& sweeps) {
  EXPECT_TRUE(sweeps.ok()) << sweeps.status();
  std::vector<uint64_t> points;
  if (!sweeps.ok()) return points;
  for (const PlacedSweep& placed : *sweeps) points.push_back(placed.sweep->cloud.num_points());
  return points;
}

TEST(SweepHistoryTest, KeepsTheLastOnesNewestFirst) {
  SweepHistory history({.num_sweeps = 3});
  EXPECT_THAT(Points(history.Add(Cloud(1), {}, At(0.0))), ElementsAre(1));
  EXPECT_THAT(Points(history.Add(Cloud(2), {}, At(0.1))), ElementsAre(2, 1));
  EXPECT_THAT(Points(history.Add(Cloud(3), {}, At(0.2))), ElementsAre(3, 2, 1));
  EXPECT_THAT(Points(history.Add(Cloud(4), {}, At(0.3))), ElementsAre(4, 3, 2));
  EXPECT_EQ(history.num_bytes(), 9 * kPointBytes);
}

TEST(SweepHistoryTest, OneSweepIsTheFrameAlone) {
  SweepHistory history({.num_sweeps = 1});
  EXPECT_THAT(Points(history.Add(Cloud(1), {}, At(0))), ElementsAre(1));
  EXPECT_THAT(Points(history.Add(Cloud(2), {}, At(0))), ElementsAre(2));
}

TEST(SweepHistoryTest, PlacesOlderSweepsInTheNewestOnes) {
  SweepHistory history({.num_sweeps = 3, .max_age = absl::Seconds(60)});
  ASSERT_TRUE(history.Add(Cloud(1), {.x = 1}, At(100)).ok());
  ASSERT_TRUE(history.Add(Cloud(2), {.x = 3}, At(110.25)).ok());
  const auto sweeps = history.Add(Cloud(3), {.x = 7, .y = 1, .qw = 0, .qz = 2}, At(111));
  ASSERT_TRUE(sweeps.ok()) << sweeps.status();
  ASSERT_EQ(sweeps->size(), 3u);
  EXPECT_EQ((*sweeps)[0].transform, kIdentity);  // without rounding
  EXPECT_EQ((*sweeps)[0].age_seconds, 0);
  EXPECT_EQ((*sweeps)[1].age_seconds, 0.75f);
  EXPECT_EQ((*sweeps)[2].age_seconds, 11);
  EXPECT_THAT((*sweeps)[1].transform, Pointwise(FloatNear(1e-6f), Transform{-1, 0, 0, 4, 0, -1, 0, 1, 0, 0, 1, 0}));
  EXPECT_THAT((*sweeps)[2].transform, Pointwise(FloatNear(1e-6f), Transform{-1, 0, 0, 6, 0, -1, 0, 1, 0, 0, 1, 0}));
}

TEST(SweepHistoryTest, ForgetsWhatIsTooOld) {
  SweepHistory history({.num_sweeps = 10, .max_age = absl::Seconds(1)});
  ASSERT_TRUE(history.Add(Cloud(1), {}, At(0)).ok());
  EXPECT_THAT(Points(history.Add(Cloud(2), {}, At(1))), ElementsAre(2, 1));  // an age of exactly max_age is not too old
  EXPECT_THAT(Points(history.Add(Cloud(3), {}, At(1.5))), ElementsAre(3, 2));
  EXPECT_THAT(Points(history.Add(Cloud(4), {}, At(9))), ElementsAre(4));
  EXPECT_EQ(history.num_bytes(), 4 * kPointBytes);
}

TEST(SweepHistoryTest, ForgetsTheOldestWhereBytesAreTooManyButNeverTheNewest) {
  SweepHistory history({.num_sweeps = 10, .max_age = absl::Hours(1), .max_bytes = 10 * kPointBytes});
  ASSERT_TRUE(history.Add(Cloud(4), {}, At(0)).ok());
  EXPECT_THAT(Points(history.Add(Cloud(6), {}, At(1))), ElementsAre(6, 4));
  EXPECT_THAT(Points(history.Add(Cloud(1), {}, At(2))), ElementsAre(1, 6));
  EXPECT_THAT(Points(history.Add(Cloud(50), {}, At(3))), ElementsAre(50));
  EXPECT_THAT(Points(history.Add(Cloud(2), {}, At(4))), ElementsAre(2));
}

TEST(SweepHistoryTest, StampsMayRepeatButNotGoBack) {
  SweepHistory history({.num_sweeps = 3});
  ASSERT_TRUE(history.Add(Cloud(1), {}, At(5)).ok());
  const auto same = history.Add(Cloud(2), {}, At(5));
  EXPECT_THAT(Points(same), ElementsAre(2, 1));
  EXPECT_EQ((*same)[1].age_seconds, 0);
  const auto before = history.Add(Cloud(3), {}, At(4.5));
  EXPECT_EQ(before.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(before.status()), error_reason::kBadStamp);
  EXPECT_THAT(std::string(before.status().message()), HasSubstr("500ms before"));
  for (const absl::Time stamp : {absl::InfinitePast(), absl::InfiniteFuture()}) {
    EXPECT_EQ(ReasonOf(history.Add(Cloud(4), {}, stamp).status()), error_reason::kBadStamp);
  }
  EXPECT_THAT(Points(history.Add(Cloud(5), {}, At(5.5))), ElementsAre(5, 2, 1));  // refused clouds leave nothing behind
}

TEST(SweepHistoryTest, BadPosesLeaveNothingBehind) {
  SweepHistory history({.num_sweeps = 3});
  ASSERT_TRUE(history.Add(Cloud(1), {}, At(0)).ok());
  EXPECT_EQ(ReasonOf(history.Add(Cloud(2), {.qw = 0}, At(1)).status()), error_reason::kBadPose);
  EXPECT_EQ(history.num_bytes(), kPointBytes);
  EXPECT_THAT(Points(history.Add(Cloud(3), {}, At(0.5))), ElementsAre(3, 1));
}

TEST(SweepHistoryTest, ResetForgetsAllAndAllowsAnyStamp) {
  SweepHistory history({.num_sweeps = 3});
  const auto before = history.Add(Cloud(1), {}, At(10));
  history.Reset();
  EXPECT_EQ(history.num_sweeps(), 0);
  EXPECT_EQ(history.num_bytes(), 0);
  EXPECT_THAT(Points(history.Add(Cloud(2), {}, At(3))), ElementsAre(2));
  EXPECT_THAT(Points(before), ElementsAre(1));  // a running frame keeps its sweeps
}

TEST(SweepHistoryTest, EmptyCloudsAreSweepsToo) {
  SweepHistory history({.num_sweeps = 2, .max_bytes = 1});
  ASSERT_TRUE(history.Add(PointCloud(), {}, At(0)).ok());
  EXPECT_THAT(Points(history.Add(PointCloud(), {}, At(0.1))), ElementsAre(0, 0));
}

}  // namespace
}  // namespace voxserve::sweep_history_test
