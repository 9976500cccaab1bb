// Tests LatencyFit and LineFit, which learn the device time of batches, with simulated times.

#include "engine/serving/admission/latency_fit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

namespace voxserve::latency_fit_test {
namespace {

BatchSize Size(int64_t requests, int64_t points_each = 100'000) {
  return {.points = requests * points_each, .voxels = requests * points_each * 3 / 4, .requests = requests};
}

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// Returns 1 ms + 2 ms per 100,000 points + 1 ms per request, times `slowdown`.
absl::Duration TimeOf(const BatchSize& size, double slowdown = 1) {
  return absl::Milliseconds(slowdown *
                            (1 + static_cast<double>(size.points) / 50'000 + static_cast<double>(size.requests)));
}

void ObserveMixed(LatencyFit& model, int count, double noise = 0) {
  std::mt19937 random(7);
  for (int i = 0; i < count; ++i) {
    const BatchSize size =
        Size(1 + static_cast<int64_t>(random() % 6), 20'000 + static_cast<int64_t>(random() % 100'000));
    model.Observe(size, TimeOf(size, std::exp(std::normal_distribution<>(0, noise)(random))));
  }
}

TEST(LatencyFitTest, KnowsNothingBeforeTheFirstBatch) {
  const LatencyFit model;
  EXPECT_EQ(model.Expected(Size(8)), absl::ZeroDuration());
  EXPECT_EQ(model.Bound(Size(8)), absl::ZeroDuration());
  EXPECT_EQ(model.EstimateVoxels(1000), 1000);
}

TEST(LatencyFitTest, KnowsRequestsUpToFourTimesTheLargestSeen) {
  LatencyFit model;
  EXPECT_FALSE(model.Knows(Size(1, 10)));
  const BatchSize seen = Size(2, 100'000);
  model.Observe(seen, TimeOf(seen));
  EXPECT_TRUE(model.Knows(Size(1, 10)));
  EXPECT_TRUE(model.Knows(Size(1, 400'000)));
  EXPECT_TRUE(model.Knows(Size(8, 400'000))) << "whatever their number";
  EXPECT_FALSE(model.Knows(Size(1, 400'004)));
  EXPECT_FALSE(model.Knows({.points = 400'000, .voxels = 300'001, .requests = 1}));
}

TEST(LatencyFitTest, LearnsThePartsOfBatchesOfManySizes) {
  LatencyFit model;
  ObserveMixed(model, 100);
  for (const BatchSize& size : {Size(1), Size(4), Size(8), Size(1, 10'000), Size(2, 300'000)}) {
    EXPECT_NEAR(Ms(model.Expected(size)), Ms(TimeOf(size)), 0.05 * Ms(TimeOf(size)));
  }
  BatchSize several = Size(12);
  several.batches = 3;
  EXPECT_NEAR(Ms(model.Expected(several)), 3 * Ms(TimeOf(Size(4))), 0.15 * Ms(TimeOf(several)));
}

TEST(LatencyFitTest, ManySizesWithNoise) {
  LatencyFit model;
  ObserveMixed(model, 300, 0.05);
  for (const BatchSize& size : {Size(1), Size(4), Size(8)}) {
    EXPECT_NEAR(Ms(model.Expected(size)), Ms(TimeOf(size)), 0.12 * Ms(TimeOf(size)));
    EXPECT_GT(model.Bound(size), model.Expected(size) * 1.05);
    EXPECT_LT(model.Bound(size), model.Expected(size) * 1.4);
  }
}

TEST(LatencyFitTest, OneSizeAloneIsWellPosedAndLeavesLargerBatchesPlausible) {
  LatencyFit model;
  for (int i = 0; i < 50; ++i) model.Observe(Size(1), absl::Milliseconds(4));
  EXPECT_NEAR(Ms(model.Expected(Size(1))), 4, 0.01);
  EXPECT_GT(Ms(model.Expected(Size(4))), 8);
  EXPECT_LE(Ms(model.Expected(Size(4))), 16);
}

TEST(LatencyFitTest, OneSizeForLongDoesNotUnlearnTheOthers) {
  LatencyFit model;
  ObserveMixed(model, 100);
  for (int i = 0; i < 500; ++i) model.Observe(Size(1), TimeOf(Size(1)));
  EXPECT_NEAR(Ms(model.Expected(Size(6))), Ms(TimeOf(Size(6))), 0.06 * Ms(TimeOf(Size(6))));
}

TEST(LineFitTest, NoCoefficientIsNegative) {
  LineFit model;
  // Larger batches take less time here, which no line with positive coefficients explains.
  for (int i = 0; i < 40; ++i) {
    model.Observe(Size(1), absl::Milliseconds(9));
    model.Observe(Size(6), absl::Milliseconds(6));
  }
  EXPECT_GE(model.Expected({.points = 0, .voxels = 0, .requests = 0, .batches = 0}), absl::ZeroDuration());
  EXPECT_GE(model.Expected({.points = 1'000'000, .requests = 0, .batches = 0}), absl::ZeroDuration());
  EXPECT_GE(model.Expected({.points = 0, .voxels = 1'000'000, .requests = 0, .batches = 0}), absl::ZeroDuration());
  EXPECT_GE(model.Expected({.points = 0, .requests = 100, .batches = 0}), absl::ZeroDuration());
  EXPECT_GE(model.Expected(Size(64)), model.Expected(Size(1)));
}

// Batches of two and three requests share a bucket.
TEST(LatencyFitTest, FollowsASmallChangeWithinTwentyBatchesOfTheBucket) {
  for (const double slowdown : {1.5, 0.7}) {
    LatencyFit model;
    ObserveMixed(model, 100);
    for (int i = 0; i < 40; ++i) model.Observe(Size(1 + i % 4), TimeOf(Size(1 + i % 4), slowdown));
    EXPECT_NEAR(Ms(model.Expected(Size(2))), Ms(TimeOf(Size(2), slowdown)), 0.1 * Ms(TimeOf(Size(2), slowdown)));
  }
}

TEST(LatencyFitTest, BelievesALargeChangeTheSecondTime) {
  for (const double slowdown : {10.0, 0.1}) {
    LatencyFit model;
    ObserveMixed(model, 100);
    for (int i = 0; i < 2; ++i) model.Observe(Size(1), TimeOf(Size(1), slowdown));
    EXPECT_NEAR(Ms(model.Expected(Size(1))), Ms(TimeOf(Size(1), slowdown)), 0.2 * Ms(TimeOf(Size(1), slowdown)));
    // The parts of the line must be scaled, not forgotten.
    EXPECT_NEAR(Ms(model.Expected(Size(6))), Ms(TimeOf(Size(6), slowdown)), 0.2 * Ms(TimeOf(Size(6), slowdown)));
    // Errors from before the change must not widen the bound.
    EXPECT_LE(model.Bound(Size(1)), model.Expected(Size(1)) * 1.2501);
  }
}

TEST(LatencyFitTest, OneOutlierHardlyMatters) {
  for (const double slowdown : {10.0, 0.1}) {
    LatencyFit model;
    ObserveMixed(model, 150, 0.02);
    const absl::Duration expected = model.Expected(Size(4)), bound = model.Bound(Size(4));
    model.Observe(Size(4), TimeOf(Size(4), slowdown));
    EXPECT_NEAR(Ms(model.Expected(Size(4))), Ms(expected), 0.2 * Ms(expected));
    EXPECT_NEAR(Ms(model.Bound(Size(4))), Ms(bound), 0.25 * Ms(bound));
    for (int i = 0; i < 20; ++i) model.Observe(Size(4), TimeOf(Size(4)));
    EXPECT_NEAR(Ms(model.Expected(Size(4))), Ms(TimeOf(Size(4))), 0.05 * Ms(TimeOf(Size(4))));
  }
}

TEST(LatencyFitTest, BoundHolds98OfAHundred) {
  LatencyFit model;
  std::mt19937 random(3);
  int within = 0;
  const int count = 3000;
  for (int i = 0; i < count; ++i) {
    const BatchSize size = Size(1 + i % 5);
    const absl::Duration time = TimeOf(size, std::exp(std::normal_distribution<>(0, 0.1)(random)));
    if (time <= model.Bound(size)) ++within;
    model.Observe(size, time);
  }
  EXPECT_GT(within, count * 97 / 100);
  EXPECT_LT(model.Bound(Size(3)), TimeOf(Size(3)) * 1.6);
}

TEST(LatencyFitTest, EstimatesVoxelsFromAbove) {
  LatencyFit model;
  for (int i = 0; i < 100; ++i) {
    // 19 of 20 batches have 0.5 voxels per point, the others 0.8.
    const int64_t voxels = i % 20 == 0 ? 80'000 : 50'000;
    model.Observe({.points = 100'000, .voxels = voxels, .requests = 1}, absl::Milliseconds(4));
  }
  EXPECT_GE(model.EstimateVoxels(1000), 500);
  EXPECT_LE(model.EstimateVoxels(1000), 801);
  for (int i = 0; i < 64; ++i) {
    model.Observe({.points = 100'000, .voxels = 20'000, .requests = 1}, absl::Milliseconds(4));
  }
  EXPECT_NEAR(static_cast<double>(model.EstimateVoxels(1'000'000)), 200'000, 2);
}

TEST(LatencyFitTest, WhatIsNoMeasurementIsPassedOver) {
  LatencyFit model;
  const auto observe_nonsense = [&model] {
    model.Observe({.points = 1, .voxels = 1, .requests = 0}, absl::Milliseconds(5));
    model.Observe({.points = -1, .voxels = 1, .requests = 1}, absl::Milliseconds(5));
    model.Observe({.points = 1, .voxels = -1, .requests = 1}, absl::Milliseconds(5));
    model.Observe(Size(1), absl::ZeroDuration());
    model.Observe(Size(1), -absl::Milliseconds(5));
    model.Observe(Size(1), absl::InfiniteDuration());
  };
  observe_nonsense();
  EXPECT_EQ(model.Expected(Size(1)), absl::ZeroDuration());
  ObserveMixed(model, 50);
  const absl::Duration expected = model.Expected(Size(1));
  observe_nonsense();
  EXPECT_EQ(model.Expected(Size(1)), expected);
}

TEST(LatencyFitTest, EmptyCloudsFirst) {
  LatencyFit model;
  for (int i = 0; i < 3; ++i) model.Observe({.points = 0, .voxels = 0, .requests = 1}, absl::Microseconds(100));
  EXPECT_NEAR(Ms(model.Expected({.requests = 1})), 0.1, 0.001);
  for (int i = 0; i < 40; ++i) model.Observe(Size(1), absl::Milliseconds(4));
  EXPECT_NEAR(Ms(model.Expected(Size(1))), 4, 0.2);
}

TEST(LatencyFitTest, ManyThreads) {
  LatencyFit model;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&model] {
      for (int k = 0; k < 200; ++k) {
        model.Observe(Size(1 + k % 4), TimeOf(Size(1 + k % 4)));
        EXPECT_GT(model.Bound(Size(2)), absl::ZeroDuration());
        EXPECT_GT(model.EstimateVoxels(100), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(Ms(model.Expected(Size(2))), Ms(TimeOf(Size(2))), 0.1 * Ms(TimeOf(Size(2))));
}

TEST(LatencyFitTest, ATinyRequestSaysNothingOfALargeOne) {
  LatencyFit model;
  model.Observe({.points = 1, .voxels = 1, .requests = 1}, absl::Milliseconds(5));
  EXPECT_LT(model.Bound({.points = 100'000, .voxels = 90'000, .requests = 1}), absl::Milliseconds(50));
  model.Observe({.points = 100'000, .voxels = 90'000, .requests = 1}, absl::Milliseconds(500));
  model.Observe({.points = 100'000, .voxels = 90'000, .requests = 1}, absl::Milliseconds(500));
  EXPECT_GT(model.Expected({.points = 100'000, .voxels = 90'000, .requests = 1}), absl::Milliseconds(300));
}

// Returns 0.5 ms and 10 ns per point, times a factor that differs between buckets, as it does if buckets have tuned
// plans.
absl::Duration TimeByPlan(const BatchSize& size) {
  constexpr double kFactors[] = {1, 1.3, 0.9, 1.4, 1.1, 1.6, 0.8, 1.2};
  const double factor = kFactors[std::bit_width(static_cast<uint64_t>(size.points)) % 8];
  return absl::Milliseconds(factor * (0.5 + static_cast<double>(size.points) * 1e-5));
}

BatchSize RandomSize(std::mt19937& random) {
  const double points = std::exp(std::uniform_real_distribution<>(std::log(8e3), std::log(5e5))(random));
  return Size(1, static_cast<int64_t>(points));
}

TEST(LatencyFitTest, EveryBucketOfSizesHasItsOwnLine) {
  LatencyFit model;
  LineFit line;
  std::mt19937 random(5);
  double error = 0, line_error = 0;
  for (int i = 0; i < 1000; ++i) {
    const BatchSize size = RandomSize(random);
    const double actual = Ms(TimeByPlan(size));
    if (i >= 200) {
      error += std::abs(Ms(model.Expected(size)) - actual) / actual / 800;
      line_error += std::abs(Ms(line.Expected(size)) - actual) / actual / 800;
    }
    model.Observe(size, TimeByPlan(size));
    line.Observe(size, TimeByPlan(size));
  }
  EXPECT_LT(error, 0.03);
  EXPECT_GT(line_error, 0.1) << "one line cannot tell them apart";
  // Several equal batches are predicted by the bucket of one of them.
  BatchSize several = Size(4, 20'000);
  several.batches = 4;
  EXPECT_NEAR(Ms(model.Expected(several)), 4 * Ms(TimeByPlan(Size(1, 20'000))), 0.1 * Ms(model.Expected(several)));
}

TEST(LatencyFitTest, ABucketThatIsNewGoesByTheOthers) {
  LatencyFit model;
  ObserveMixed(model, 100);
  const BatchSize small = Size(1, 3'000);
  EXPECT_NEAR(Ms(model.Expected(small)), Ms(TimeOf(small)), 0.1 * Ms(TimeOf(small)));
  model.Observe(small, TimeOf(small));
  EXPECT_NEAR(Ms(model.Expected(small)), Ms(TimeOf(small)), 0.1 * Ms(TimeOf(small)));
}

TEST(LatencyFitTest, WhereTimesChangeEveryBucketFollows) {
  LatencyFit model;
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const BatchSize size = RandomSize(random);
    model.Observe(size, TimeByPlan(size));
  }
  // Three batches of one size show that everything takes five times as long.
  for (int i = 0; i < 3; ++i) model.Observe(Size(1, 100'000), 5 * TimeByPlan(Size(1, 100'000)));
  for (const int64_t points : {20'000, 60'000, 300'000}) {
    const BatchSize size = Size(1, points);
    EXPECT_GT(model.Expected(size), 2.5 * TimeByPlan(size)) << points;
  }
}

TEST(LatencyFitTest, ABucketThatWasNotSeenForLongGoesByTheOthers) {
  LatencyFit model;
  const BatchSize rare = Size(1, 10'000), frequent = Size(1, 100'000);
  for (int i = 0; i < 20; ++i) model.Observe(rare, absl::Milliseconds(50));
  for (int i = 0; i < 20; ++i) model.Observe(frequent, absl::Milliseconds(55));
  EXPECT_NEAR(Ms(model.Expected(rare)), 50, 2);
  // The time changes so slowly that no batch is a surprise.
  for (int i = 0; i < 300; ++i) model.Observe(frequent, absl::Milliseconds(55) * std::pow(0.99, i));
  EXPECT_LT(Ms(model.Expected(rare)), 10);
}

TEST(LatencyFitTest, ASuccessorStartsAsAllBatchesOfItsPredecessor) {
  LatencyFit model, successor;
  ObserveMixed(model, 100);
  successor.Observe(Size(1), absl::Seconds(9));
  successor.StartAs(model);
  EXPECT_NEAR(Ms(successor.Expected(Size(1))), Ms(TimeOf(Size(1))), 0.1 * Ms(TimeOf(Size(1))));
  successor.StartAs(successor);
  EXPECT_NEAR(Ms(successor.Expected(Size(1))), Ms(TimeOf(Size(1))), 0.1 * Ms(TimeOf(Size(1))));
}

}  // namespace
}  // namespace voxserve::latency_fit_test
