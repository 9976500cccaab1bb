// Tests the page-locked memory of CUDA: copies from a pool's buffers run asynchronously and copy every byte, and the
// memory of a buffer serves later buffers.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "engine/runtime/device_pool.h"
#include "engine/runtime/pinned_memory.h"
#include "engine/runtime/stream.h"
#include "tests/support/fake_pinned_memory.h"
#include "tests/support/test_device.h"

namespace voxserve::pinned_memory_cuda_test {
namespace {

class PinnedMemoryTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(support::Device::kCuda); }

  // Returns the type of memory that CUDA reports for this address.
  static cudaMemoryType TypeOf(const char* data) {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, data), cudaSuccess);
    return attributes.type;
  }
};

TEST_F(PinnedMemoryTest, IsPageLockedUntilItIsFreed) {
  const absl::StatusOr<char*> data = AllocatePinned(3'000'001);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(TypeOf(*data), cudaMemoryTypeHost);
  EXPECT_EQ(TypeOf(*data + 3'000'000), cudaMemoryTypeHost);
  FreePinned(*data);
  FreePinned(nullptr);
}

TEST_F(PinnedMemoryTest, AnImpossibleSizeIsAnErrorAndNothingIsBroken) {
  EXPECT_FALSE(AllocatePinned(int64_t{1} << 50).ok());
  const absl::StatusOr<char*> data = AllocatePinned(1);
  ASSERT_TRUE(data.ok()) << data.status();
  FreePinned(*data);
}

TEST_F(PinnedMemoryTest, APoolsBuffersArriveOnTheDevice) {
  const auto pool = PinnedPool::Create({.source = PinnedSource(0)});
  const auto device_pool = DevicePool::Create({.device = 0});
  ASSERT_TRUE(device_pool.ok()) << device_pool.status();
  const auto stream = Stream::CreateOn(0);
  ASSERT_TRUE(stream.ok()) << stream.status();
  constexpr int64_t kBytes = 2'000'003;
  support::MakeReady(*pool, kBytes, 1);
  EXPECT_EQ(pool->pinned_bytes(), int64_t{2} << 20);
  for (int round = 0; round < 20; ++round) {
    HostBuffer buffer = *pool->Take(kBytes, BufferLife::kRequest);
    ASSERT_TRUE(buffer.is_pinned());
    ASSERT_EQ(TypeOf(buffer.data()), cudaMemoryTypeHost);
    std::string bytes(static_cast<size_t>(kBytes), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + static_cast<size_t>(round));
    const size_t piece = 1000 + 61 * static_cast<size_t>(round);
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      buffer.Write(static_cast<int64_t>(begin), std::string_view(bytes).substr(begin, piece));
    }
    buffer.FinishWrites();
    const auto copy = DeviceBuffer::Create(**device_pool, kBytes, stream->view());
    ASSERT_TRUE(copy.ok()) << copy.status();
    ASSERT_EQ(cudaMemcpyAsync(copy->data(), buffer.data(), static_cast<size_t>(kBytes), cudaMemcpyHostToDevice,
                              stream->view().get()),
              cudaSuccess);
    ASSERT_TRUE(stream->view().Synchronize().ok());
    std::string read(bytes.size(), '\0');
    support::CopyFromDevice(support::Device::kCuda, read.data(), copy->data(), read.size());
    ASSERT_TRUE(read == bytes) << round;
  }
}

}  // namespace
}  // namespace voxserve::pinned_memory_cuda_test
