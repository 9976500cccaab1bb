#include "client/cpp/cli/bench/bench_statistics.h"

#include <cmath>

#include "gmock/gmock.h"

namespace voxserve::client::bench_statistics_test {
namespace {

using ::testing::ElementsAre;

std::vector<absl::Duration> Milliseconds(const std::vector<int>& values) {
  std::vector<absl::Duration> durations;
  for (const int value : values) durations.push_back(absl::Milliseconds(value));
  return durations;
}

TEST(BenchStatisticsTest, PercentilesAreThoseOfTheNearestRank) {
  const std::vector<absl::Duration> five = Milliseconds({1, 2, 3, 4, 5});
  EXPECT_EQ(Percentile(five, 0), absl::Milliseconds(1));
  EXPECT_EQ(Percentile(five, 20), absl::Milliseconds(1));
  EXPECT_EQ(Percentile(five, 20.1), absl::Milliseconds(2));
  EXPECT_EQ(Percentile(five, 50), absl::Milliseconds(3));
  EXPECT_EQ(Percentile(five, 99), absl::Milliseconds(5));
  EXPECT_EQ(Percentile(five, 100), absl::Milliseconds(5));
  EXPECT_EQ(Percentile({}, 50), absl::ZeroDuration());
  std::vector<absl::Duration> thousand;
  for (int i = 1; i <= 1000; ++i) thousand.push_back(absl::Milliseconds(i));
  EXPECT_EQ(Percentile(thousand, 99), absl::Milliseconds(990));
  EXPECT_EQ(Percentile(thousand, 99.9), absl::Milliseconds(999));
}

TEST(BenchStatisticsTest, SummarisesLatenciesInAnyOrder) {
  const LatencySummary summary = SummariseLatencies(Milliseconds({9, 1, 5, 3, 7, 2, 10, 4, 8, 6}));
  EXPECT_EQ(summary.count, 10u);
  EXPECT_EQ(summary.mean, absl::Microseconds(5500));
  EXPECT_EQ(summary.p50, absl::Milliseconds(5));
  EXPECT_EQ(summary.p90, absl::Milliseconds(9));
  EXPECT_EQ(summary.p99, absl::Milliseconds(10));
  EXPECT_EQ(summary.p999, absl::Milliseconds(10));
  EXPECT_EQ(summary.max, absl::Milliseconds(10));
  EXPECT_EQ(SummariseLatencies({}).count, 0u);
  EXPECT_EQ(SummariseLatencies({}).max, absl::ZeroDuration());
}

TEST(ArrivalScheduleTest, ConstantArrivalsDoNotDrift) {
  ArrivalSchedule schedule = ArrivalSchedule::Constant(300);
  EXPECT_EQ(schedule.Next(), absl::ZeroDuration());
  absl::Duration last;
  for (int i = 1; i <= 3'000'000; ++i) last = schedule.Next();
  EXPECT_EQ(last, absl::Seconds(10'000));
}

TEST(ArrivalScheduleTest, PoissonArrivalsHaveTheirRateAndTheirSpread) {
  constexpr int kArrivals = 200'000;
  constexpr double kRate = 500;
  ArrivalSchedule schedule = ArrivalSchedule::Poisson(kRate, 7);
  double sum = 0, sum_of_squares = 0;
  absl::Duration last;
  for (int i = 0; i < kArrivals; ++i) {
    const absl::Duration next = schedule.Next();
    ASSERT_GE(next, last);
    const double gap = absl::ToDoubleSeconds(next - last) * kRate;
    sum += gap;
    sum_of_squares += gap * gap;
    last = next;
  }
  // The gaps have an exponential distribution with mean 1 and variance 1, so their mean square is 2. The seed is fixed,
  // so this cannot fail by chance.
  EXPECT_NEAR(sum / kArrivals, 1, 0.01);
  EXPECT_NEAR(sum_of_squares / kArrivals, 2, 0.05);
}

TEST(ArrivalScheduleTest, ASeedGivesOneProcess) {
  ArrivalSchedule a = ArrivalSchedule::Poisson(10, 1), b = ArrivalSchedule::Poisson(10, 1);
  ArrivalSchedule other = ArrivalSchedule::Poisson(10, 2);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const absl::Duration next = a.Next();
    EXPECT_EQ(next, b.Next());
    differs = differs || next != other.Next();
  }
  EXPECT_TRUE(differs);
}

TEST(StabilityTest, TheLastThreeWindowsDecide) {
  const auto window = [](double rate, double p99_ms) { return WindowSummary{rate, absl::Milliseconds(p99_ms)}; };
  EXPECT_FALSE(IsStable({}, 10));
  EXPECT_FALSE(IsStable({window(100, 5), window(100, 5)}, 10));
  EXPECT_TRUE(IsStable({window(100, 5), window(104, 5.2), window(96, 4.8)}, 5));
  EXPECT_TRUE(IsStable({window(1, 900), window(100, 5), window(104, 5.2), window(96, 4.8)}, 5));
  EXPECT_FALSE(IsStable({window(100, 5), window(104, 5.2), window(96, 4.8), window(1, 5)}, 5));
  EXPECT_FALSE(IsStable({window(100, 5), window(104, 5.2), window(96, 4.8)}, 3)) << "throughput varies";
  EXPECT_FALSE(IsStable({window(100, 5), window(100, 7), window(100, 5)}, 10)) << "p99 varies";
  EXPECT_FALSE(IsStable({window(0, 0), window(0, 0), window(0, 0)}, 100)) << "nothing was answered";
}

}  // namespace
}  // namespace voxserve::client::bench_statistics_test
