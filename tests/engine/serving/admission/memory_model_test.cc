// Tests that MemoryModel learns how much memory batches take, and how large it lets them be.

#include "engine/serving/admission/memory_model.h"

#include <gtest/gtest.h>

namespace voxserve::memory_model_test {
namespace {

TEST(MemoryModelTest, NothingIsALimitBeforeSomethingIsKnown) {
  MemoryModel memory;
  EXPECT_EQ(memory.MaxPoints(1, 1), MemoryModel::kNoLimit);
  EXPECT_EQ(memory.Expected(1000, 1000).total(), 0);
  memory.Observe(1000, 700, {});  // on the CPU
  EXPECT_EQ(memory.MaxPoints(1, 1), MemoryModel::kNoLimit);
}

TEST(MemoryModelTest, PointsAndVoxelsAreLearntApart) {
  MemoryModel memory;
  memory.Observe(1000, 1000, {.fixed = 7, .points = 100'000, .features = 1'000'000});    // small and dense
  memory.Observe(10'000, 1000, {.fixed = 9, .points = 900'000, .features = 1'000'000});  // large and sparse
  const BatchBytes expected = memory.Expected(5000, 2000);
  EXPECT_EQ(expected.fixed, 9);
  EXPECT_EQ(expected.points, 450'000);
  EXPECT_EQ(expected.features, 2'000'000);
}

TEST(MemoryModelTest, SmallRunsTeachNothingOfLargeOnes) {
  MemoryModel memory;
  memory.Observe(1000, 500, {.points = 100'000, .features = 50'000});
  memory.Observe(600, 300, {.points = 66'000, .features = 27'000});
  memory.Observe(10, 5, {.points = 80'000, .features = 40'000});
  EXPECT_EQ(memory.Expected(1000, 1000).points, 110'000) << "the largest of those that had 500 points or more";
  EXPECT_EQ(memory.Expected(1000, 1000).features, 100'000);
  // After many small runs, only small runs are remembered. One large run corrects the ratios that they taught.
  for (int i = 0; i < 40; ++i) memory.Observe(10, 5, {.points = 80'000, .features = 40'000});
  EXPECT_EQ(memory.Expected(1000, 1000).points, 8'000'000);
  memory.Observe(1000, 500, {.points = 100'000, .features = 50'000});
  EXPECT_EQ(memory.Expected(1000, 1000).points, 100'000);
}

TEST(MemoryModelTest, AQuarterIsLeftFree) {
  MemoryModel memory;
  memory.Observe(1000, 500, {.fixed = 1000, .points = 100'000, .features = 500'000});
  // A point takes 100 bytes and a voxel 1000 bytes. The prediction is multiplied by 1.25.
  EXPECT_EQ(memory.MaxPoints(1000 + 75'000, 0.5), 100);
  EXPECT_EQ(memory.MaxPoints(1000 + 137'500, 1), 100);
  EXPECT_EQ(memory.MaxPoints(999, 1), 1) << "less than what every batch takes";
  EXPECT_EQ(memory.MaxPoints(0, 1), 1);
  EXPECT_EQ(memory.MaxPoints(MemoryModel::kNoLimit, 1), MemoryModel::kNoLimit);
}

// The images of a detection network take as much memory for small clouds as for large ones (sample_bytes).
TEST(MemoryModelTest, EverySampleTakesWhatTheProgramSays) {
  MemoryModel memory(/*sample_bytes=*/1000);
  EXPECT_EQ(memory.Expected(10, 10, 8).total(), 0) << "nothing has run";
  memory.Observe(1000, 500, {.fixed = 600, .points = 100'000, .features = 4000 + 500'000}, /*requests=*/4);
  EXPECT_EQ(memory.Expected(10, 10, 8).features, 8 * 1000 + 10 * 1000);
  // Images may take at most half of the limit.
  EXPECT_EQ(memory.MaxRequests(16'000, 100), 8);
  EXPECT_EQ(memory.MaxRequests(16'000, 5), 5);
  EXPECT_EQ(memory.MaxRequests(1000, 100), 1) << "a request may always run";
  EXPECT_EQ(memory.MaxRequests(MemoryModel::kNoLimit, 100), 100);
  // A point with its voxel takes 1100 bytes. The prediction is multiplied by 1.25.
  EXPECT_EQ(memory.MaxPoints(600 + 8000 + 137'500, 1, 8), 100);
  EXPECT_EQ(memory.MaxPoints(600 + 8000, 1, 8), 1);
}

TEST(MemoryModelTest, WhatDidNotFitIsALimitThatGrowsWithWhatFits) {
  MemoryModel memory;
  memory.Observe(1000, 500, {.points = 100'000, .features = 0});
  memory.DidNotFit(3200);
  EXPECT_EQ(memory.MaxPoints(MemoryModel::kNoLimit, 1), 1600);
  EXPECT_EQ(memory.MaxPoints(125'000, 1), 1000) << "the smaller of both";
  memory.Fit(1500, 100);  // a batch below the limit does not raise it
  EXPECT_EQ(memory.MaxPoints(MemoryModel::kNoLimit, 1), 1600);
  memory.Fit(1600, 100);
  EXPECT_EQ(memory.MaxPoints(MemoryModel::kNoLimit, 1), 1700);
}

TEST(MemoryModelTest, ALimitGrowsThoughRequestsAreLarge) {
  MemoryModel memory;
  memory.DidNotFit(8 * 1000);
  for (int i = 0; i < 40; ++i) {
    const int64_t requests = memory.MaxPoints(MemoryModel::kNoLimit, 1) / 1000;
    memory.Fit(requests * 1000, requests);
  }
  EXPECT_GE(memory.MaxPoints(MemoryModel::kNoLimit, 1), 8 * 1000) << "memory that others had is free again";
  memory.DidNotFit(2);
  memory.Fit(1, 1);
  EXPECT_EQ(memory.MaxPoints(MemoryModel::kNoLimit, 1), 2);
}

TEST(MemoryModelTest, ASuccessorStartsAsItsPredecessor) {
  MemoryModel old, successor, unlearnt;
  old.Observe(1000, 500, {.points = 100'000, .features = 0});
  old.DidNotFit(3200);
  successor.StartAs(old);
  EXPECT_EQ(successor.MaxPoints(MemoryModel::kNoLimit, 1), 1600);
  EXPECT_EQ(successor.MaxPoints(125'000, 1), 1000);
  successor.StartAs(unlearnt);
  EXPECT_EQ(successor.MaxPoints(125'000, 1), 1000);
}

}  // namespace
}  // namespace voxserve::memory_model_test
