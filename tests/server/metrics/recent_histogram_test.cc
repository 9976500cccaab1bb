#include "server/metrics/recent_histogram.h"

#include <gtest/gtest.h>

#include <vector>

namespace voxserve::recent_histogram_test {
namespace {

const std::vector<double> kBoundaries = {1, 2, 4};

TEST(RecentHistogramTest, IsEmptyAtFirst) {
  const Distribution distribution = RecentHistogram(&kBoundaries).Summarize(absl::FromUnixSeconds(1'000));
  EXPECT_EQ(distribution.count, 0);
  EXPECT_EQ(distribution.mean, 0);
  EXPECT_EQ(distribution.p99, 0);
}

TEST(RecentHistogramTest, Summarizes) {
  const absl::Time now = absl::FromUnixSeconds(1'000);
  RecentHistogram histogram(&kBoundaries);
  for (const double value : {1.0, 1.5, 1.5, 100.0}) histogram.Observe(value, now);
  const Distribution distribution = histogram.Summarize(now);
  EXPECT_EQ(distribution.count, 4);
  EXPECT_EQ(distribution.mean, 26);
  EXPECT_DOUBLE_EQ(distribution.p50, 1.5) << "1 lies in the bucket that ends with it";
  EXPECT_EQ(distribution.p99, 4) << "beyond the last boundary";
}

TEST(RecentHistogramTest, QuantilesOfOneValueAreThatValue) {
  const absl::Time now = absl::FromUnixSeconds(1'000);
  for (const double value : {0.01, 2.5, 100.0}) {
    RecentHistogram histogram(&kBoundaries);
    histogram.Observe(value, now);
    const Distribution distribution = histogram.Summarize(now);
    EXPECT_EQ(distribution.mean, value);
    EXPECT_EQ(distribution.p50, value);
    EXPECT_EQ(distribution.p95, value);
    EXPECT_EQ(distribution.p99, value);
  }
}

TEST(RecentHistogramTest, KeepsAMinuteAndNotMuchMore) {
  RecentHistogram histogram(&kBoundaries);
  const absl::Time start = absl::FromUnixSeconds(1'000'009);  // the last second of a slot
  histogram.Observe(1, start);
  EXPECT_EQ(histogram.Summarize(start + absl::Seconds(60)).count, 1);
  EXPECT_EQ(histogram.Summarize(start + absl::Seconds(61)).count, 0);
  const absl::Time next = absl::FromUnixSeconds(1'000'010);  // the first second of a slot
  histogram.Observe(1, next);
  EXPECT_EQ(histogram.Summarize(next + absl::Seconds(69)).count, 1);
  EXPECT_EQ(histogram.Summarize(next + absl::Seconds(70)).count, 0);
}

TEST(RecentHistogramTest, ReusesItsSlots) {
  RecentHistogram histogram(&kBoundaries);
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  for (int second = 0; second < 1'000; ++second, now += absl::Seconds(1)) histogram.Observe(2, now);
  const Distribution distribution = histogram.Summarize(now - absl::Seconds(1));
  EXPECT_EQ(distribution.count, 70);
  EXPECT_EQ(distribution.mean, 2);
  EXPECT_EQ(histogram.Summarize(now + absl::Hours(1)).count, 0);
}

TEST(HistogramQuantileTest, IsLinearInABucket) {
  EXPECT_EQ(HistogramQuantile({1, 2, 4}, {0, 0, 0, 0}, 0.5), 0);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {4, 0, 0, 0}, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {0, 0, 4, 0}, 0.5), 3);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {1, 2, 1, 0}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {1, 0, 0, 9}, 0.9), 4) << "beyond the last boundary";
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {0, 1, 0, 0}, 1.0), 2);
}

}  // namespace
}  // namespace voxserve::recent_histogram_test
