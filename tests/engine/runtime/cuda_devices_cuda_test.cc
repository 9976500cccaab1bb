// Tests that CurrentDeviceGuard leaves a thread with the GPU that was current before.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "engine/runtime/cuda_devices.h"
#include "engine/runtime/stream.h"
#include "tests/support/test_device.h"

namespace voxserve::cuda_devices_test {
namespace {

int Current() {
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

TEST(CurrentDeviceGuardTest, WithoutAGpuItDoesNothing) {
  if (support::HasDevice(support::Device::kCuda)) GTEST_SKIP() << "there is a GPU";
  {
    const CurrentDeviceGuard guard;
    const CurrentDeviceGuard other(0);
  }
  int count = 0;
  EXPECT_NE(cudaGetDeviceCount(&count), cudaSuccess);
}

TEST(CurrentDeviceGuardTest, TheDeviceBeforeIsCurrentAgain) {
  SKIP_WITHOUT(support::Device::kCuda);
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  for (const int mine : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(mine), cudaSuccess);
    {
      const CurrentDeviceGuard guard;
      EXPECT_EQ(Current(), mine);
      const auto stream = Stream::CreateOn(1 - mine);
      ASSERT_TRUE(stream.ok()) << stream.status();
      EXPECT_EQ(Current(), 1 - mine);
    }
    EXPECT_EQ(Current(), mine);
    {
      const CurrentDeviceGuard guard(1 - mine);
      EXPECT_EQ(Current(), 1 - mine);
    }
    EXPECT_EQ(Current(), mine);
  }
}

}  // namespace
}  // namespace voxserve::cuda_devices_test
