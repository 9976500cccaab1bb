// Tests HostMemory, which reserves each block in the memory budget before it allocates the block, and the CPU's Arena.

#include "engine/runtime/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/available_memory.h"
#include "kernels/core/scratch.h"
#include "tests/support/sanitizers.h"

namespace voxserve::host_memory_test {
namespace {

using testing::HasSubstr;
using Use = MemoryBudget::Use;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(HostMemoryTest, BlocksAreReservedInWholeMiBAndGivenBack) {
  MemoryBudget budget(100 * kMiB);
  HostMemory memory(&budget);
  void* const large = memory.allocate(10 * kMiB, 64);
  EXPECT_EQ(budget.held(Use::kScratch), 10 * kMiB);
  std::memset(large, 1, 10 * kMiB);
  void* const small = memory.allocate(100, 8);
  std::memset(small, 1, 100);
  EXPECT_EQ(budget.held(), 11 * kMiB);
  memory.deallocate(large, 10 * kMiB, 64);
  EXPECT_EQ(budget.held(), kMiB);
  EXPECT_GE(memory.peak_bytes(), 10 * kMiB + 100);
  memory.deallocate(small, 100, 8);
  EXPECT_EQ(budget.held(), kMiB) << "the heap keeps its page";
  memory.Settle();
  EXPECT_EQ(budget.held(), 0);
  EXPECT_EQ(memory.held_bytes(), 0);
}

TEST(HostMemoryTest, SettleReturnsTheHeapsFreePages) {
  if (support::kIsSanitized) GTEST_SKIP() << "a sanitizer's heap keeps freed blocks";
  HostMemory memory;
  constexpr size_t kBytes = 64 << 10;
  std::vector<void*> blocks;
  const int64_t before = ResidentBytes();
  for (int i = 0; i < 2000; ++i) std::memset(blocks.emplace_back(memory.allocate(kBytes, 8)), 1, kBytes);
  // The last block stays, so the heap keeps the memory below it.
  for (int i = 0; i < 1999; ++i) memory.deallocate(blocks[static_cast<size_t>(i)], kBytes, 8);
  EXPECT_GT(ResidentBytes() - before, 100 * kMiB);
  EXPECT_GT(memory.held_bytes(), 100 * kMiB);
  memory.Settle();
  EXPECT_LT(ResidentBytes() - before, 10 * kMiB);
  EXPECT_LT(memory.held_bytes(), kMiB);
  memory.deallocate(blocks.back(), kBytes, 8);
}

TEST(HostMemoryTest, WhatDoesNotFitIsRefusedBeforeItIsAllocated) {
  MemoryBudget budget(100 * kMiB);
  HostMemory memory(&budget);
  void* const kept = memory.allocate(60 * kMiB, 64);
  EXPECT_TRUE(memory.refusal().ok());
  EXPECT_THROW(static_cast<void>(memory.allocate(41 * kMiB, 64)), std::bad_alloc);
  EXPECT_EQ(ReasonOf(memory.refusal()), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(memory.refusal().message()), HasSubstr("bytes of scratch do not fit the server's memory"));
  EXPECT_EQ(budget.held(), 60 * kMiB) << "as before";
  memory.BeginBatch();
  EXPECT_TRUE(memory.refusal().ok());
  memory.deallocate(kept, 60 * kMiB, 64);
  EXPECT_EQ(budget.held(), 0);
}

TEST(HostMemoryTest, ImpossibleSizesAreRefused) {
  HostMemory memory;
  EXPECT_THROW(static_cast<void>(memory.allocate(size_t{1} << 63, 8)), std::bad_alloc);
  EXPECT_THROW(static_cast<void>(memory.allocate(size_t{1} << 50, 8)), std::bad_alloc);
  EXPECT_THAT(std::string(memory.refusal().message()), HasSubstr("the system has no"));
  EXPECT_EQ(memory.held_bytes(), 0);
}

TEST(HostMemoryTest, BlocksAreAligned) {
  HostMemory memory;
  for (const size_t alignment : {size_t{8}, size_t{64}, size_t{4096}, size_t{2} << 20}) {
    for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{9} << 20}) {
      void* const block = memory.allocate(bytes, alignment);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0u);
      std::memset(block, 1, bytes);
      memory.deallocate(block, bytes, alignment);
    }
  }
  memory.Settle();
  EXPECT_EQ(memory.held_bytes(), 0);
}

TEST(HostMemoryTest, AVectorThatIsRenewedHoldsOneBlockAtATime) {
  MemoryBudget budget(100 * kMiB);
  HostMemory memory(&budget);
  kernels::ScratchVector<char> values(&memory);
  kernels::Renew(values, 60 * kMiB);
  kernels::Renew(values, 90 * kMiB);
  EXPECT_EQ(values.size(), size_t{90 * kMiB});
  kernels::Renew(values, 10);
  EXPECT_EQ(budget.held(), 90 * kMiB) << "the memory is kept for the next batch";
  EXPECT_THROW(kernels::Renew(values, 101 * kMiB), std::bad_alloc);
  EXPECT_TRUE(values.empty());
  EXPECT_EQ(budget.held(), 0);
}

TEST(HostMemoryTest, AnArenaThatIsRefusedIsEmptyAndUsable) {
  MemoryBudget budget(20 * kMiB);
  HostMemory memory(&budget);
  Arena arena(&memory);
  ASSERT_TRUE(arena.Reserve(10 * kMiB).ok());
  EXPECT_EQ(ReasonOf(arena.Reserve(30 * kMiB)), error_reason::kOutOfMemory);
  EXPECT_EQ(arena.capacity(), 0);
  EXPECT_EQ(budget.held(), 0);
  ASSERT_TRUE(arena.Reserve(20 * kMiB).ok());
  const Arena moved = std::move(arena);
  EXPECT_EQ(moved.capacity(), 20 * kMiB);
}

TEST(HostMemoryTest, ContextsOfManyThreadsNeverExceedTheBudget) {
  MemoryBudget budget(64 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&budget, seed] {
      HostMemory memory(&budget);
      std::mt19937 random(seed);
      std::vector<std::pair<void*, size_t>> blocks;
      for (int i = 0; i < 2000; ++i) {
        const size_t bytes = size_t{1} << (random() % 25);
        try {
          blocks.emplace_back(memory.allocate(bytes, 64), bytes);
        } catch (const std::bad_alloc&) {
          EXPECT_FALSE(memory.refusal().ok());
        }
        EXPECT_LE(budget.held(), budget.limit_bytes());
        if (blocks.size() > 8 || (random() % 2 == 0 && !blocks.empty())) {
          memory.deallocate(blocks.back().first, blocks.back().second, 64);
          blocks.pop_back();
        }
      }
      for (const auto& [block, bytes] : blocks) memory.deallocate(block, bytes, 64);
      memory.Settle();
      EXPECT_EQ(memory.held_bytes(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.held(), 0);
}

}  // namespace
}  // namespace voxserve::host_memory_test
