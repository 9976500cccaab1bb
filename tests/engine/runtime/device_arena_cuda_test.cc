// Tests DeviceArena, the memory of batches on a GPU: within a batch it is a stack, and from the second batch on it is
// one block.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/runtime/device_pool.h"
#include "tests/support/test_device.h"

namespace voxserve::device_arena_cuda_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class DeviceArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    auto stream = Stream::CreateOn(0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_.emplace(*std::move(stream));
    auto pool = DevicePool::Create({.limit_bytes = 256 * kMiB});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    arena_ = DeviceArena(pool_.get(), stream_->view());
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    arena_.Release();
    EXPECT_EQ(pool_->used_bytes(), 0);
    EXPECT_TRUE(stream_->view().Synchronize().ok());
  }

  char* Take(int64_t bytes) {
    const absl::StatusOr<char*> taken = arena_.Take(bytes);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *taken : nullptr;
  }

  std::unique_ptr<DevicePool> pool_;
  std::optional<Stream> stream_;
  DeviceArena arena_;
};

TEST_F(DeviceArenaTest, WhatWasTakenLastGoesBackFirst) {
  Take(kMiB);
  const DeviceArena::Mark kept = arena_.Top();
  char* const scratch = Take(2 * kMiB);
  Take(3 * kMiB);
  arena_.ReturnTo(kept);
  EXPECT_EQ(Take(5 * kMiB), scratch);
  EXPECT_EQ(arena_.most_bytes(), 6 * kMiB);
  EXPECT_EQ(arena_.capacity(), DeviceArena::kBlockBytes);
}

TEST_F(DeviceArenaTest, ADefaultMarkStandsBeforeEverything) {
  arena_.ReturnTo({});
  char* const first = Take(kMiB);
  Take(20 * kMiB);
  arena_.ReturnTo({});
  EXPECT_EQ(arena_.capacity(), DeviceArena::kBlockBytes);
  EXPECT_EQ(Take(kMiB), first);
}

TEST_F(DeviceArenaTest, KeepsWhatWasTakenBeforeTheMarkInEarlierBlocks) {
  const std::vector<char> written(kMiB, 7);
  Take(10 * kMiB);
  char* const kept = Take(10 * kMiB);               // in a second block
  ASSERT_TRUE(stream_->view().Synchronize().ok());  // the support functions copy on another stream
  support::CopyToDevice(support::Device::kCuda, kept, written.data(), written.size());
  const DeviceArena::Mark mark = arena_.Top();
  Take(30 * kMiB);
  arena_.ReturnTo(mark);
  EXPECT_NE(Take(kMiB), kept);
  std::vector<char> read(written.size());
  support::CopyFromDevice(support::Device::kCuda, read.data(), kept, read.size());
  EXPECT_EQ(read, written);
}

TEST_F(DeviceArenaTest, TheNextBatchHasOneBlockForTheMostThatWasTakenAtOnce) {
  for (int batch = 0; batch < 3; ++batch) {
    Take(10 * kMiB);
    const DeviceArena::Mark kept = arena_.Top();
    for (const int64_t scratch : {20, 60, 5}) {
      arena_.ReturnTo(kept);
      Take(scratch * kMiB);
    }
    EXPECT_EQ(arena_.most_bytes(), 70 * kMiB);
    arena_.Reset();
    EXPECT_EQ(arena_.most_bytes(), 0);
    EXPECT_EQ(arena_.capacity(), 80 * kMiB);  // 70 MiB and an eighth more, rounded up
    EXPECT_EQ(pool_->used_bytes(), 80 * kMiB);
  }
}

// The first block has room only for the first Take. ReturnTo keeps this block, since the mark is in it.
TEST_F(DeviceArenaTest, OneBlockThatWasTooSmallGrows) {
  Take(kMiB);
  const DeviceArena::Mark kept = arena_.Top();
  Take(40 * kMiB);
  arena_.ReturnTo(kept);
  EXPECT_EQ(arena_.capacity(), DeviceArena::kBlockBytes);
  arena_.Reset();
  EXPECT_EQ(arena_.capacity(), 48 * kMiB);
  arena_.Reset();
  EXPECT_EQ(arena_.capacity(), 48 * kMiB);
}

TEST_F(DeviceArenaTest, WhatDoesNotFitIsRefusedAndForgotten) {
  Take(kMiB);
  const absl::StatusOr<char*> refused = arena_.Take(300 * kMiB);
  EXPECT_EQ(ReasonOf(refused.status()), error_reason::kOutOfMemory) << refused.status();
  EXPECT_EQ(arena_.most_bytes(), kMiB);
  arena_.Release();
  EXPECT_EQ(arena_.most_bytes(), 0);
  EXPECT_EQ(arena_.capacity(), 0);
}

}  // namespace
}  // namespace voxserve::device_arena_cuda_test
