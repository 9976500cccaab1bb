// Tests the public function that samples farthest points of clouds in host memory. The selected points are compared
// with the serial algorithm, on the CPU and a GPU.

#include "engine/ops/points/farthest_point_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/runtime/devices.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/kernels/points/farthest/farthest_point_testing.h"

namespace voxserve::farthest_point_sample_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Points = std::vector<float>;  // [n, 3]
using Selected = std::vector<int32_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Points RandomPoints(int64_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> place(0, 30);
  Points points(static_cast<size_t>(3 * num_points));
  for (float& value : points) value = place(random);
  return points;
}

// Returns points with many equal distances. Many points coincide, and every 17th, from the first on, has NaN on one
// axis.
Points CoarsePoints(int64_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  Points points;
  for (int64_t i = 0; i < num_points; ++i) {
    for (int axis = 0; axis < 3; ++axis) points.push_back(0.25f * static_cast<float>(random() % 40));
    if (i % 17 == 0) points[points.size() - 1 - random() % 3] = random() % 2 == 0 ? kNan : -kInfinity;
  }
  return points;
}

Selected SelectSerially(const Points& points, const FarthestPoints& asked) {
  kernels::fixtures::PointClouds clouds;
  clouds.Add(points, static_cast<int64_t>(asked.num_points));
  clouds.starts = {asked.seed ? kernels::FarthestPointStart(*asked.seed, clouds.NumPoints(0))
                              : static_cast<int64_t>(asked.start_index)};
  return kernels::fixtures::SelectSerially(clouds).selected;
}

void Append(const Selected& more, Selected& all) { all.insert(all.end(), more.begin(), more.end()); }

class FarthestPointSampleTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    auto devices = OpenDevices(GetParam() == support::Device::kCpu ? "cpu" : "cuda:0", /*memory_limit_bytes=*/0);
    ASSERT_TRUE(devices.ok()) << devices.status();
    device_ = std::move(devices->front());
    auto context = MakeContext(device_, &pool_);
    ASSERT_TRUE(context.ok()) << context.status();
    context_.emplace(*std::move(context));
  }

  absl::StatusOr<Selected> Batched(const Points& points, int64_t num_samples, int64_t num_points,
                                   const FarthestPoints& asked) {
    return FarthestPointSample(points, num_samples, num_points, asked, *context_);
  }
  absl::StatusOr<Selected> Ragged(absl::Span<const float> points, const std::vector<int64_t>& point_begin,
                                  const std::vector<FarthestPoints>& asked) {
    return RaggedFarthestPointSample(points, point_begin, asked, *context_);
  }
  // Samples one cloud.
  absl::StatusOr<Selected> One(const Points& points, const FarthestPoints& asked) {
    return Batched(points, 1, static_cast<int64_t>(points.size() / 3), asked);
  }

  static void ExpectRefused(const absl::StatusOr<Selected>& refused, std::string_view reason,
                            const std::string& message) {
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
    EXPECT_EQ(ReasonOf(refused.status()), reason);
    EXPECT_EQ(refused.status().message(), message);
  }

  Device device_;
  kernels::ThreadPool pool_{2};
  std::optional<ExecutionContext> context_;
};

INSTANTIATE_TEST_SUITE_P(Devices, FarthestPointSampleTest, support::AllDevices(), support::DeviceName);

TEST_P(FarthestPointSampleTest, BatchedIsRaggedIsTheSerialAlgorithm) {
  constexpr int64_t kNumSamples = 3, kNumPoints = 700;
  const FarthestPoints asked{.num_points = 150, .start_index = 12};
  for (const bool is_coarse : {false, true}) {
    Points points;
    Selected expected;
    for (uint32_t i = 0; i < kNumSamples; ++i) {
      const Points cloud = is_coarse ? CoarsePoints(kNumPoints, i) : RandomPoints(kNumPoints, i);
      points.insert(points.end(), cloud.begin(), cloud.end());
      Append(SelectSerially(cloud, asked), expected);
    }
    const auto batched = Batched(points, kNumSamples, kNumPoints, asked);
    ASSERT_TRUE(batched.ok()) << batched.status();
    EXPECT_EQ(*batched, expected);
    const auto ragged = Ragged(points, {0, kNumPoints, 2 * kNumPoints, 3 * kNumPoints}, {asked});
    ASSERT_TRUE(ragged.ok()) << ragged.status();
    EXPECT_EQ(*ragged, expected);
  }
}

TEST_P(FarthestPointSampleTest, RaggedCloudsAskEachForItself) {
  const std::vector<int64_t> sizes = {5, 0, 2500, 333, 1, 40};
  const std::vector<FarthestPoints> asked = {{.num_points = 5, .start_index = 4},
                                             {},
                                             {.num_points = 300, .seed = 3},
                                             {.num_points = 333, .start_index = 332, .restricts_network = true},
                                             {.num_points = 1},
                                             {.start_index = 99}};
  Points points;
  std::vector<int64_t> point_begin = {0};
  Selected expected;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Points cloud = RandomPoints(sizes[i], static_cast<uint32_t>(i));
    points.insert(points.end(), cloud.begin(), cloud.end());
    point_begin.push_back(point_begin.back() + sizes[i]);
    if (asked[i].num_points > 0) Append(SelectSerially(cloud, asked[i]), expected);
  }
  const auto selected = Ragged(points, point_begin, asked);
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_EQ(*selected, expected);
}

TEST_P(FarthestPointSampleTest, TiesGoToTheLowestIndex) {
  // The points are the middle and the corners of a square. Two other corners are equally far from each corner; the one
  // with the lower index must come first.
  const auto selected = One({1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 2, 2, 0}, {.num_points = 5});
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_THAT(*selected, ElementsAre(0, 1, 2, 3, 4));
}

TEST_P(FarthestPointSampleTest, InvalidPointsAreNeverSelected) {
  const Points points = {0, kNan, 0, 3, 0, 0, kInfinity, 0, 0, 9, 0, 0, 5, 0, 0, 0, 0, -kInfinity};
  for (const auto& [start, first] : {std::pair(0, 1), std::pair(2, 3), std::pair(5, 1)}) {  // the next valid one
    const auto selected = One(points, {.num_points = 3, .start_index = static_cast<uint64_t>(start)});
    ASSERT_TRUE(selected.ok()) << selected.status();
    EXPECT_THAT(*selected, ElementsAre(first, first == 1 ? 3 : 1, 4));
  }
}

TEST_P(FarthestPointSampleTest, ASeedDrawsTheSameStartAgain) {
  const Points points = RandomPoints(1000, 1);
  Selected starts;
  for (const uint64_t seed : {1, 2}) {
    const FarthestPoints asked{.num_points = 64, .start_index = 1'000'000, .seed = seed};
    const auto selected = One(points, asked), again = One(points, asked);
    ASSERT_TRUE(selected.ok() && again.ok()) << selected.status() << again.status();
    EXPECT_EQ(*selected, *again);
    EXPECT_EQ(*selected, SelectSerially(points, asked));
    starts.push_back(selected->front());
  }
  EXPECT_NE(starts[0], starts[1]);
}

TEST_P(FarthestPointSampleTest, AllPointsOfACloud) {
  const Points points = RandomPoints(513, 2);
  const FarthestPoints asked{.num_points = 513};
  const auto selected = One(points, asked);
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_EQ(*selected, SelectSerially(points, asked));
}

TEST_P(FarthestPointSampleTest, NothingIsAsked) {
  for (const auto& nothing :
       {Batched({}, 0, 0, {.num_points = 4}), Batched({}, 0, 5, {.num_points = 4}), Batched({}, 3, 0, {}),
        One({1, 2, 3}, {}), Ragged({}, {0}, {}), Ragged({}, {0}, {{.num_points = 4}}), Ragged({}, {0, 0}, {{}})}) {
    ASSERT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_THAT(*nothing, IsEmpty());
  }
}

TEST_P(FarthestPointSampleTest, MoreThanThereAreIsRefused) {
  const Points points = {0, 0, 0, 1, 0, 0, kNan, 0, 0, 3, 0, 0};
  ExpectRefused(One(points, {.num_points = 5}), error_reason::kBadSample,
                "samples[0].num_points is 5; the cloud has 4 points");
  ExpectRefused(One(points, {.num_points = 4}), error_reason::kBadSample,
                "samples[0].num_points is 4; the cloud has 3 valid points of 4");
  ExpectRefused(Batched(points, 2, 2, {.num_points = 2}), error_reason::kBadSample,
                "samples[1].num_points is 2; the cloud has 1 valid points of 2");
  ExpectRefused(Ragged(points, {0, 4, 4}, {{.num_points = 1}}), error_reason::kBadSample,
                "samples[1].num_points is 1; the cloud has 0 points");
  ExpectRefused(Ragged(points, {0, 2, 3, 4}, {{.num_points = 1}}), error_reason::kBadSample,
                "samples[1].num_points is 1; the cloud has 0 valid points of 1");
  ExpectRefused(One(points, {.num_points = static_cast<uint64_t>(-1)}), error_reason::kBadSample,
                "samples[0].num_points is 18446744073709551615; the cloud has 4 points");
  // The context can still be used after the refusal.
  const auto selected = One(points, {.num_points = 3});
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_THAT(*selected, ElementsAre(0, 3, 1));
}

TEST_P(FarthestPointSampleTest, AStartBeyondTheCloudIsRefused) {
  const Points points = RandomPoints(10, 3);
  ExpectRefused(One(points, {.num_points = 2, .start_index = 10}), error_reason::kBadSample,
                "samples[0].start_index is 10; the cloud has 10 points");
  ExpectRefused(Ragged(points, {0, 6, 10}, {{.num_points = 2, .start_index = 4}}), error_reason::kBadSample,
                "samples[1].start_index is 4; the cloud has 4 points");
}

TEST_P(FarthestPointSampleTest, ShapesThatDoNotFitAreRefused) {
  const Points points = RandomPoints(4, 4);
  const auto expect_batched = [&](int64_t num_samples, int64_t num_points, const std::string& message) {
    ExpectRefused(Batched(points, num_samples, num_points, {.num_points = 1}), error_reason::kBadLayout, message);
  };
  expect_batched(2, 3, "2 clouds of 3 points of 3 values; 12 values are given");
  expect_batched(0, 4, "0 clouds of 4 points of 3 values; 12 values are given");
  expect_batched(-2, -2, "-2 clouds of -2 points of 3 values; 12 values are given");
  expect_batched(1, -4, "1 clouds of -4 points of 3 values; 12 values are given");
  expect_batched(2, std::numeric_limits<int64_t>::max(),
                 "2 clouds of 9223372036854775807 points of 3 values; 12 values are given");
  const std::string limit = std::to_string(kernels::kMaxSamples);
  expect_batched(std::numeric_limits<int64_t>::max(), 0,
                 "a batch of 9223372036854775807 clouds; the limit is " + limit);

  const auto expect_ragged = [&](const std::vector<int64_t>& point_begin, const std::string& message) {
    ExpectRefused(Ragged(points, point_begin, {{.num_points = 1}}), error_reason::kBadLayout, message);
  };
  expect_ragged({}, "no offsets; B clouds have B + 1");
  expect_ragged({1, 4}, "the first offset is 1; it must be 0");
  expect_ragged({0, 3, 2, 4}, "offset 2 is 2, below the one before, 3");
  expect_ragged({0, 3}, "the last offset is 3; 12 values are given, 3 a point");
  expect_ragged({0, 5}, "the last offset is 5; 12 values are given, 3 a point");
  expect_ragged({0}, "the last offset is 0; 12 values are given, 3 a point");
  std::vector<int64_t> too_many(kernels::kMaxSamples + 2, 0);
  too_many.back() = 4;
  expect_ragged(too_many, "a batch of " + std::to_string(kernels::kMaxSamples + 1) + " clouds; the limit is " + limit);
  ExpectRefused(Ragged(absl::MakeSpan(points).first(11), {0, 3}, {{.num_points = 1}}), error_reason::kBadLayout,
                "the last offset is 3; 11 values are given, 3 a point");

  ExpectRefused(Ragged(points, {0, 1, 2, 4}, {{}, {}}), error_reason::kBadLayout,
                "3 clouds, and what is asked of 2; it must be one for each, or one for all");
  ExpectRefused(Ragged(points, {0, 2, 4}, {}), error_reason::kBadLayout,
                "2 clouds, and what is asked of 0; it must be one for each, or one for all");
}

TEST_P(FarthestPointSampleTest, MorePointsThanAnIndexNumbersAreRefused) {
  constexpr int64_t kNumPoints = int64_t{1} << 31;
  const float value = 0;  // nothing is read
  const auto refused = Ragged({&value, 3 * kNumPoints}, {0, kNumPoints}, {{.num_points = 1}});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kTooManyPoints);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("a batch of 2147483648 points"));
}

}  // namespace
}  // namespace voxserve::farthest_point_sample_test
