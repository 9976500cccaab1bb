// Tests PinnedPool, which keeps page-locked memory for clouds. Fake memory takes CUDA's place.

#include "engine/runtime/pinned_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::pinned_pool_test {
namespace {

using support::MakeReady;
using Use = MemoryBudget::Use;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

class PinnedPoolTest : public testing::Test {
 protected:
  std::shared_ptr<PinnedPool> Pool(int64_t max_bytes = int64_t{1} << 30, MemoryBudget* budget = nullptr) {
    return PinnedPool::Create({.source = memory_.Source(), .max_bytes = max_bytes, .budget = budget});
  }
  static HostBuffer Take(PinnedPool& pool, int64_t bytes, BufferLife life = BufferLife::kRequest) {
    absl::StatusOr<HostBuffer> buffer = pool.Take(bytes, life);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size(), bytes);
    return *std::move(buffer);
  }

  support::FakePinnedMemory memory_;
};

TEST_F(PinnedPoolTest, TheFirstCloudsAreOrdinaryAndTheNextOnesPinned) {
  const auto pool = Pool();
  {
    const HostBuffer first = Take(*pool, kMiB), second = Take(*pool, kMiB);
    EXPECT_FALSE(first.is_pinned() || second.is_pinned());
    EXPECT_EQ(memory_.num_allocations(), 0) << "nobody waits for page-locking";
  }
  pool->Adjust();
  EXPECT_EQ(memory_.num_blocks(), 2) << "as many as were out at once";
  EXPECT_EQ(pool->pinned_bytes(), 2 * kMiB);
  const HostBuffer first = Take(*pool, kMiB), second = Take(*pool, kMiB), third = Take(*pool, kMiB);
  EXPECT_TRUE(first.is_pinned() && second.is_pinned());
  EXPECT_NE(first.data(), second.data());
  EXPECT_TRUE(memory_.Holds(first.data(), kMiB) && memory_.Holds(second.data(), kMiB));
  EXPECT_FALSE(third.is_pinned());
  EXPECT_FALSE(memory_.Holds(third.data(), kMiB));
}

TEST_F(PinnedPoolTest, MemoryIsUsedAgainWhenItsBufferEnds) {
  const auto pool = Pool();
  MakeReady(*pool, kMiB, 1);
  HostBuffer buffer = Take(*pool, kMiB);
  const char* const data = buffer.data();
  EXPECT_FALSE(Take(*pool, kMiB).is_pinned()) << "it is in use";
  HostBuffer moved = std::move(buffer);
  EXPECT_FALSE(Take(*pool, kMiB).is_pinned()) << "moving does not end it";
  moved = HostBuffer();
  EXPECT_EQ(Take(*pool, kMiB - 5).data(), data);
  EXPECT_EQ(memory_.num_allocations(), 1);
}

TEST_F(PinnedPoolTest, AShrunkBufferGivesAllOfItsMemoryBack) {
  const auto pool = Pool();
  MakeReady(*pool, kMiB, 1);
  HostBuffer buffer = Take(*pool, kMiB);
  const char* const data = buffer.data();
  buffer.Shrink(100);
  EXPECT_EQ(buffer.bytes().size(), 100u);
  HostBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.size(), 100);
  moved = HostBuffer();
  EXPECT_EQ(Take(*pool, kMiB).data(), data);
}

TEST_F(PinnedPoolTest, SizesAreRoundedUpToPowersOfTwo) {
  struct Case {
    int64_t bytes;
    int64_t pinned_bytes;  // 0: ordinary (pageable) memory
  };
  const std::vector<Case> cases = {{0, 0},
                                   {1, 0},
                                   {PinnedPool::kMinBytes - 1, 0},
                                   {PinnedPool::kMinBytes, PinnedPool::kMinBytes},
                                   {PinnedPool::kMinBytes + 1, 2 * PinnedPool::kMinBytes},
                                   {2 * PinnedPool::kMinBytes, 2 * PinnedPool::kMinBytes},
                                   {1'470'000, 2 * kMiB},
                                   {PinnedPool::kMaxBytes, PinnedPool::kMaxBytes},
                                   {PinnedPool::kMaxBytes + 1, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.bytes);
    const auto pool = Pool();
    MakeReady(*pool, c.bytes, 1);
    EXPECT_EQ(pool->pinned_bytes(), c.pinned_bytes);
    const HostBuffer buffer = Take(*pool, c.bytes);
    EXPECT_EQ(buffer.is_pinned(), c.pinned_bytes > 0);
    EXPECT_TRUE(!buffer.is_pinned() || memory_.Holds(buffer.data(), c.bytes));
  }
  EXPECT_EQ(memory_.num_blocks(), 0) << "a pool that ends frees its memory";
}

TEST_F(PinnedPoolTest, NeverMoreThanItsMost) {
  const auto pool = Pool(/*max_bytes=*/5 * kMiB);
  MakeReady(*pool, 2 * kMiB, 10);
  EXPECT_EQ(pool->pinned_bytes(), 4 * kMiB);
  MakeReady(*pool, kMiB, 10);
  EXPECT_EQ(pool->pinned_bytes(), 5 * kMiB);
  MakeReady(*pool, 100 * kKiB, 10);
  EXPECT_EQ(pool->pinned_bytes(), 5 * kMiB);
}

TEST_F(PinnedPoolTest, OneAdjustPageLocksNoMoreThanAStep) {
  const auto pool = Pool();
  MakeReady(*pool, 16 * kMiB, 7);
  EXPECT_EQ(pool->pinned_bytes(), PinnedPool::kStepBytes);
  pool->Adjust();
  EXPECT_EQ(pool->pinned_bytes(), 7 * 16 * kMiB);
}

TEST_F(PinnedPoolTest, OneAdjustFreesNoMoreThanAStep) {
  const auto pool = Pool();
  MakeReady(*pool, 16 * kMiB, 4);
  MakeReady(*pool, 32 * kMiB, 2);
  ASSERT_EQ(pool->pinned_bytes(), 128 * kMiB);
  int64_t before = pool->pinned_bytes();
  for (int i = 0; i < 3 * PinnedPool::kMemoryOfAdjusts; ++i) {
    pool->Adjust();
    EXPECT_LE(before - pool->pinned_bytes(), PinnedPool::kStepBytes);
    before = pool->pinned_bytes();
  }
  EXPECT_EQ(pool->pinned_bytes(), 0);
}

// Streams keep 8 MiB of clouds in pageable memory. The pool must page-lock at most half of its limit for such clouds.
TEST_F(PinnedPoolTest, MemoryThatStreamsKeepLeavesRoomForOtherSizes) {
  const auto pool = Pool(/*max_bytes=*/8 * kMiB);
  std::vector<HostBuffer> sweeps;
  for (int i = 0; i < 8; ++i) sweeps.push_back(Take(*pool, kMiB, BufferLife::kStream));
  pool->Adjust();
  EXPECT_LE(pool->pinned_bytes(), 4 * kMiB);
  MakeReady(*pool, 2 * kMiB, 1);
  EXPECT_TRUE(Take(*pool, 2 * kMiB).is_pinned());
}

TEST_F(PinnedPoolTest, StreamsTakeHalfAtMost) {
  const auto pool = Pool(/*max_bytes=*/8 * kMiB);
  MakeReady(*pool, kMiB, 8);
  ASSERT_EQ(pool->pinned_bytes(), 8 * kMiB);
  std::vector<HostBuffer> sweeps;
  for (int i = 0; i < 6; ++i) sweeps.push_back(Take(*pool, kMiB, BufferLife::kStream));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(sweeps[static_cast<size_t>(i)].is_pinned(), i < 4) << i;
  std::vector<HostBuffer> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(Take(*pool, kMiB));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(requests[static_cast<size_t>(i)].is_pinned(), i < 4) << i;
  sweeps.clear();
  EXPECT_TRUE(Take(*pool, kMiB, BufferLife::kStream).is_pinned()) << "room that sweeps leave";
}

TEST_F(PinnedPoolTest, WhatIsNotWantedForAWhileIsFreed) {
  const auto pool = Pool();
  MakeReady(*pool, kMiB, 3);
  ASSERT_EQ(memory_.num_blocks(), 3);
  int num_kept = 0;
  for (; memory_.num_blocks() == 3 && num_kept < 1000; ++num_kept) {
    const HostBuffer one = Take(*pool, kMiB);
    pool->Adjust();
  }
  EXPECT_GE(num_kept, PinnedPool::kMemoryOfAdjusts);
  EXPECT_LE(num_kept, 2 * PinnedPool::kMemoryOfAdjusts + 1);
  EXPECT_EQ(memory_.num_blocks(), 1) << "one is wanted every second";
  EXPECT_EQ(pool->pinned_bytes(), kMiB);
  for (int i = 0; i < 2 * PinnedPool::kMemoryOfAdjusts + 1; ++i) pool->Adjust();
  EXPECT_EQ(memory_.num_blocks(), 0);
  EXPECT_EQ(memory_.num_allocations(), 3) << "none was made anew meanwhile";
}

TEST_F(PinnedPoolTest, ABufferInUseIsNotFreed) {
  const auto pool = Pool();
  MakeReady(*pool, kMiB, 2);
  HostBuffer kept = Take(*pool, kMiB);
  kept.Write(0, std::string(kMiB, 'k'));
  for (int i = 0; i < 3 * PinnedPool::kMemoryOfAdjusts; ++i) pool->Adjust();
  EXPECT_EQ(memory_.num_blocks(), 1);
  EXPECT_TRUE(memory_.Holds(kept.data(), kMiB));
  EXPECT_EQ(kept.bytes(), std::string(kMiB, 'k'));
}

TEST_F(PinnedPoolTest, ItsMemoryCountsAgainstTheBudget) {
  MemoryBudget budget(3 * kMiB + 5);
  auto pool = Pool(int64_t{1} << 30, &budget);
  MakeReady(*pool, kMiB, 2);
  EXPECT_EQ(budget.held(Use::kPinned), 2 * kMiB);
  {
    const HostBuffer in_use = Take(*pool, kMiB);
    EXPECT_EQ(budget.held(Use::kPinned), 2 * kMiB) << "in use or not";
  }
  MakeReady(*pool, kMiB, 9);
  EXPECT_EQ(budget.held(Use::kPinned), 3 * kMiB) << "no more than the budget grants";
  EXPECT_EQ(memory_.num_blocks(), 3);
  pool.reset();
  EXPECT_EQ(budget.held(), 0);
}

TEST_F(PinnedPoolTest, ABudgetThatIsFullLeavesOrdinaryMemory) {
  MemoryBudget budget(kMiB);
  const auto others = budget.Reserve(Use::kScratch, kMiB);
  const auto pool = Pool(int64_t{1} << 30, &budget);
  MakeReady(*pool, kMiB, 1);
  EXPECT_EQ(memory_.num_allocations(), 0);
  HostBuffer buffer = Take(*pool, kMiB);
  EXPECT_FALSE(buffer.is_pinned());
  buffer.Write(0, "written");
  EXPECT_EQ(buffer.bytes().substr(0, 7), "written");
}

TEST_F(PinnedPoolTest, WithoutPageLockedMemoryItServesOrdinaryAndTriesAgain) {
  MemoryBudget budget;
  const auto pool = Pool(int64_t{1} << 30, &budget);
  memory_.set_is_full(true);
  for (int i = 0; i < 3; ++i) {
    MakeReady(*pool, kMiB, 2);
    EXPECT_FALSE(Take(*pool, kMiB).is_pinned());
    EXPECT_EQ(budget.held(), 0);
    EXPECT_EQ(pool->pinned_bytes(), 0);
  }
  memory_.set_is_full(false);
  pool->Adjust();
  EXPECT_EQ(budget.held(), 2 * kMiB);
  EXPECT_TRUE(Take(*pool, kMiB).is_pinned());
}

TEST_F(PinnedPoolTest, BuffersKeepTheirPoolAlive) {
  auto pool = Pool();
  MakeReady(*pool, kMiB, 2);
  HostBuffer buffer = Take(*pool, kMiB);
  pool.reset();
  EXPECT_EQ(memory_.num_blocks(), 2);
  buffer.Write(0, std::string(kMiB, 'b'));
  EXPECT_EQ(buffer.bytes(), std::string(kMiB, 'b'));
  buffer = HostBuffer();
  EXPECT_EQ(memory_.num_blocks(), 0);
}

// Each thread must find in its buffers what it wrote, while other threads take and release buffers and call Adjust.
TEST_F(PinnedPoolTest, ThreadsNeverShareABuffer) {
  MemoryBudget budget;
  auto pool = Pool(4 * kMiB, &budget);
  std::atomic<bool> is_over{false};
  std::atomic<int> num_pinned{0}, num_wrong{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // On a busy machine Adjust may not run before the threads have ended. So the threads go on until one got a
  // page-locked buffer.
  const auto is_through = [&](int num_turns) {
    return num_turns >= 2000 && (num_pinned > 0 || std::chrono::steady_clock::now() > deadline);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string mine(70 * kKiB, static_cast<char>('a' + t));
      std::vector<HostBuffer> held;
      for (int i = 0; !is_through(i); ++i) {
        const BufferLife life = i % 3 == 0 ? BufferLife::kStream : BufferLife::kRequest;
        HostBuffer buffer = *pool->Take(static_cast<int64_t>(mine.size()), life);
        buffer.Write(0, mine);
        buffer.FinishWrites();
        num_pinned += buffer.is_pinned() ? 1 : 0;
        held.push_back(std::move(buffer));
        if (held.size() < 6) continue;
        for (const HostBuffer& one : held) num_wrong += one.bytes() == mine ? 0 : 1;
        held.erase(held.begin(), held.begin() + i % 6);
      }
    });
  }
  std::thread trimmer([&] {
    while (!is_over) pool->Adjust();
  });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  trimmer.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_GT(num_pinned, 0);
  EXPECT_EQ(memory_.num_blocks(), pool->pinned_bytes() / (128 * kKiB));
  pool.reset();
  EXPECT_EQ(memory_.num_blocks(), 0);
  EXPECT_EQ(budget.held(), 0);
}

}  // namespace
}  // namespace voxserve::pinned_pool_test
