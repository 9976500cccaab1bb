// Tests that CurrentDeviceGuard leaves a thread with the GPU that was current before.

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

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
    EXPECT_FALSE(other.status().ok()) << "which code in the scope returns";
  }
  int count = 0;
  EXPECT_NE(cudaGetDeviceCount(&count), cudaSuccess);
}

TEST(CurrentDeviceGuardTest, ADeviceThatIsNotThereIsAnErrorOfTheScopeAlone) {
  SKIP_WITHOUT(support::Device::kCuda);
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const CurrentDeviceGuard guard(count);
    EXPECT_FALSE(guard.status().ok());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  }
  EXPECT_EQ(Current(), 0);
  const CurrentDeviceGuard guard(0);
  EXPECT_TRUE(guard.status().ok()) << guard.status();
}

// Returns whether the process has a context on GPU 0. Exits if the driver does not tell.
bool FirstGpuIsUsed() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, cudaEnableDefault, &found);
  if (found != cudaDriverEntryPointSuccess) std::_Exit(1);
  unsigned int flags = 0;
  int is_active = 0;
  if (reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(function)(0, &flags, &is_active) != CUDA_SUCCESS) {
    std::_Exit(2);
  }
  return is_active != 0;
}

// In a process of its own, which has not used GPU 0. (SKIP_WITHOUT would use it.)
TEST(CurrentDeviceGuardDeathTest, AGpuThatNothingUsesGetsNoContext) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) GTEST_SKIP() << "needs two GPUs";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_the_second = [] {
    const bool was_used = FirstGpuIsUsed();
    {
      const CurrentDeviceGuard guard(1);
      if (!guard.status().ok()) std::_Exit(3);
    }
    std::_Exit(FirstGpuIsUsed() == was_used ? 0 : 4);
  };
  EXPECT_EXIT(use_the_second(), testing::ExitedWithCode(0), "");
}

TEST(CurrentDeviceGuardTest, TheDeviceBeforeIsCurrentAgain) {
  SKIP_WITHOUT(support::Device::kCuda);
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  for (const int mine : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(mine), cudaSuccess);  // makes the context that is there afterwards
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
