// Tests MemoryBudget, which counts the reserved memory of the process by use and refuses what exceeds the limit.

#include "engine/runtime/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"

namespace voxserve::memory_budget_test {
namespace {

using testing::HasSubstr;
using Use = MemoryBudget::Use;

TEST(MemoryBudgetTest, CountsByUseUntilAReservationEnds) {
  MemoryBudget budget(1000);
  {
    const auto scratch = budget.Reserve(Use::kScratch, 600);
    const auto requests = budget.Reserve(Use::kRequests, 100);
    ASSERT_TRUE(scratch.ok() && requests.ok());
    EXPECT_EQ(budget.held(Use::kScratch), 600);
    EXPECT_EQ(budget.held(), 700);
  }
  EXPECT_EQ(budget.held(), 0);
}

TEST(MemoryBudgetTest, RefusesWhatDoesNotFitAndNamesTheSizes) {
  MemoryBudget budget(1000);
  const auto held = budget.Reserve(Use::kScratch, 900);
  const auto refused = budget.Reserve(Use::kScratch, 101);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("101 bytes of scratch"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1000"));
  EXPECT_TRUE(budget.Reserve(Use::kScratch, 100).ok());
}

TEST(MemoryBudgetTest, WhatWaitsTakesHalfAtMost) {
  MemoryBudget budget(1000);
  const auto requests = budget.Reserve(Use::kRequests, 400);
  const auto refused = budget.Reserve(Use::kAnswers, 101);
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kQueueFull) << "it may fit later";
  EXPECT_NE(RetryDelayOf(refused.status()), absl::InfiniteDuration());
  EXPECT_EQ(ReasonOf(budget.Reserve(Use::kSweeps, 501).status()), error_reason::kOutOfMemory) << "it never fits";
  EXPECT_TRUE(budget.Reserve(Use::kSweeps, 100).ok());
  EXPECT_TRUE(budget.Reserve(Use::kScratch, 600).ok());
}

TEST(MemoryBudgetTest, WithoutALimitItCounts) {
  MemoryBudget budget;
  const auto held = budget.Reserve(Use::kModels, int64_t{1} << 50);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(budget.held(), int64_t{1} << 50);
}

TEST(MemoryBudgetTest, AReservationMovesAndIsGivenBackOnce) {
  MemoryBudget budget(100);
  auto first = budget.Reserve(Use::kScratch, 40);
  ASSERT_TRUE(first.ok());
  MemoryBudget::Reservation second = *std::move(first);
  MemoryBudget::Reservation third;
  third = std::move(second);
  EXPECT_EQ(budget.held(), 40);
  third.Release();
  third.Release();
  EXPECT_EQ(budget.held(), 0);
}

TEST(MemoryBudgetTest, AReservationGrowsAndShrinks) {
  MemoryBudget budget(100);
  auto held = budget.Reserve(Use::kModels, 0);
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(held->Resize(100).ok());
  EXPECT_EQ(budget.held(Use::kModels), 100);
  EXPECT_EQ(ReasonOf(held->Resize(101)), error_reason::kOutOfMemory);
  EXPECT_EQ(held->bytes(), 100) << "as it was";
  EXPECT_TRUE(held->Resize(30).ok());
  EXPECT_EQ(budget.held(), 30);
  EXPECT_TRUE(held->Resize(0).ok());
  EXPECT_EQ(budget.held(), 0);
  MemoryBudget::Reservation none;
  EXPECT_TRUE(none.Resize(5).ok());
  EXPECT_EQ(none.bytes(), 0);
}

TEST(MemoryBudgetTest, ThreadsNeverExceedTheLimit) {
  MemoryBudget budget(100);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&budget] {
      for (int k = 0; k < 10'000; ++k) {
        const auto held = budget.Reserve(Use::kScratch, 30);
        ASSERT_LE(budget.held(), 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.held(), 0);
}

}  // namespace
}  // namespace voxserve::memory_budget_test
