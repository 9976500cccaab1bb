// Tests PinnedBuffer, which reserves its page-locked memory in the memory budget. Fake memory takes CUDA's place.

#include "engine/runtime/pinned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error_reason.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::pinned_buffer_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class PinnedBufferTest : public testing::Test {
 protected:
  int64_t held() const { return budget_.held(MemoryBudget::Use::kScratch); }

  support::FakePinnedMemory memory_;
  MemoryBudget budget_{10 * kMiB};
};

TEST_F(PinnedBufferTest, WhatItHoldsIsReserved) {
  {
    PinnedBuffer buffer(memory_.Source());
    EXPECT_EQ(held(), 0);
    ASSERT_TRUE(buffer.Reserve(3 * kMiB, &budget_).ok());
    EXPECT_TRUE(memory_.Holds(buffer.data(), buffer.capacity()));
    EXPECT_GE(buffer.capacity(), 3 * kMiB);
    EXPECT_EQ(held(), buffer.capacity());
    ASSERT_TRUE(buffer.Reserve(kMiB, &budget_).ok());
    EXPECT_EQ(memory_.num_allocations(), 1) << "it is large enough";
    // Each size is below the limit, but their sum is above it.
    ASSERT_TRUE(buffer.Reserve(7 * kMiB, &budget_).ok());
    std::fill_n(buffer.data(), 7 * kMiB, 'x');
    EXPECT_EQ(held(), buffer.capacity());
    EXPECT_EQ(memory_.num_blocks(), 1);
  }
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(memory_.num_blocks(), 0);
}

TEST_F(PinnedBufferTest, WhatTheBudgetRefusesIsNotAllocated) {
  PinnedBuffer buffer(memory_.Source());
  const absl::Status refused = buffer.Reserve(10 * kMiB + 1, &budget_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(IsOutOfMemory(refused)) << refused;
  EXPECT_EQ(memory_.num_allocations(), 0);
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(buffer.capacity(), 0);
  EXPECT_TRUE(buffer.Reserve(kMiB, &budget_).ok());
}

TEST_F(PinnedBufferTest, WhatTheSystemRefusesIsNotReserved) {
  PinnedBuffer buffer(memory_.Source());
  ASSERT_TRUE(buffer.Reserve(kMiB, &budget_).ok());
  memory_.set_is_full(true);
  EXPECT_EQ(buffer.Reserve(4 * kMiB, &budget_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.capacity(), 0);
}

TEST_F(PinnedBufferTest, ReleaseGivesAllBack) {
  PinnedBuffer buffer(memory_.Source());
  buffer.Release();
  ASSERT_TRUE(buffer.Reserve(5 * kMiB, &budget_).ok());
  buffer.Release();
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(memory_.num_blocks(), 0);
  ASSERT_TRUE(buffer.Reserve(5 * kMiB).ok()) << "without a budget none is asked";
  EXPECT_EQ(held(), 0);
}

// Even if new memory gets the address of memory that was freed.
TEST_F(PinnedBufferTest, TheIdIsThatOfTheMemory) {
  PinnedBuffer buffer(memory_.Source());
  ASSERT_TRUE(buffer.Reserve(2 * kMiB).ok());
  const uint64_t first = buffer.memory_id();
  ASSERT_TRUE(buffer.Reserve(kMiB).ok());
  EXPECT_EQ(buffer.memory_id(), first) << "it is large enough";
  ASSERT_TRUE(buffer.Reserve(4 * kMiB).ok());
  const uint64_t second = buffer.memory_id();
  EXPECT_NE(second, first);
  buffer.Release();
  ASSERT_TRUE(buffer.Reserve(4 * kMiB).ok());
  EXPECT_NE(buffer.memory_id(), first);
  EXPECT_NE(buffer.memory_id(), second);
}

}  // namespace
}  // namespace voxserve::pinned_buffer_test
