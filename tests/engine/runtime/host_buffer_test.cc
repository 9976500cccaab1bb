// Tests HostBuffer, which holds a cloud in ordinary or page-locked memory, and StreamingCopy, which fills it.

#include "engine/runtime/host_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/streaming_copy.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::host_buffer_test {
namespace {

std::string RandomBytes(size_t size) {
  std::mt19937 random(3);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(StreamingCopyTest, CopiesEveryAlignmentAndSizeAndNothingBeside) {
  constexpr size_t kMaxBytes = 700, kRoom = kMaxBytes + 256;
  const std::string source = RandomBytes(kRoom);
  for (size_t from = 0; from < 70; from += 3) {
    for (size_t to = 64; to < 130; to += 5) {
      for (size_t bytes = 0; bytes <= kMaxBytes; bytes += bytes < 300 ? 1 : 37) {
        std::vector<char> target(kRoom, '#');
        StreamingCopy(target.data() + to, source.data() + from, bytes);
        FinishStreaming();
        const auto begin = target.begin() + static_cast<std::ptrdiff_t>(to);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)))
            << from << " to " << to << ", " << bytes << " bytes";
        ASSERT_TRUE(std::all_of(target.begin(), begin, [](char c) { return c == '#'; }));
        ASSERT_TRUE(std::all_of(end, target.end(), [](char c) { return c == '#'; }));
      }
    }
  }
}

TEST(HostBufferTest, OrdinaryMemoryHoldsWhatIsWritten) {
  absl::StatusOr<HostBuffer> buffer = HostBuffer::Create(11);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_FALSE(buffer->is_pinned());
  buffer->Write(5, " world");
  buffer->Write(0, "hello");
  buffer->Write(11, "");
  buffer->FinishWrites();
  EXPECT_EQ(buffer->bytes(), "hello world");
  EXPECT_EQ(HostBuffer::CopyOf("copied")->bytes(), "copied");
}

TEST(HostBufferTest, NothingIsABufferToo) {
  EXPECT_EQ(HostBuffer().size(), 0);
  EXPECT_EQ(HostBuffer().bytes(), "");
  EXPECT_EQ(HostBuffer::Create(0)->bytes(), "");
  EXPECT_EQ(HostBuffer::CopyOf("")->size(), 0);
}

TEST(HostBufferTest, MovesItsMemory) {
  HostBuffer first = *HostBuffer::CopyOf("first");
  const char* const data = first.data();
  HostBuffer second = *HostBuffer::CopyOf("second");
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), "first");
  EXPECT_EQ(first.size(), 0);  // NOLINT(bugprone-use-after-move): what is left is empty
  second = HostBuffer();
  EXPECT_EQ(second.bytes(), "");
}

TEST(HostBufferTest, MoreMemoryThanThereIsIsRefused) {
  const absl::StatusOr<HostBuffer> buffer = HostBuffer::Create(int64_t{1} << 60);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted) << buffer.status();
}

TEST(HostBufferTest, PinnedMemoryHoldsWhatIsWrittenInPiecesOfAnySize) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  const std::string bytes = RandomBytes(200'003);
  support::MakeReady(*pool, static_cast<int64_t>(bytes.size()), 1);
  for (const size_t piece :
       {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}, size_t{16'384}, bytes.size()}) {
    HostBuffer buffer = *pool->Take(static_cast<int64_t>(bytes.size()), BufferLife::kRequest);
    ASSERT_TRUE(buffer.is_pinned());
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      buffer.Write(static_cast<int64_t>(begin), std::string_view(bytes).substr(begin, piece));
    }
    buffer.FinishWrites();
    EXPECT_TRUE(buffer.bytes() == bytes) << "in pieces of " << piece;
  }
}

}  // namespace
}  // namespace voxserve::host_buffer_test
