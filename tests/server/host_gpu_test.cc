#include "server/host_gpu.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace voxserve::host_gpu_test {
namespace {

class HostGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / absl::StrCat("voxserve_host_gpu_test_", getpid());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "dev");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::filesystem::path root_;
};

TEST_F(HostGpuTest, NoDriverNoGpu) { EXPECT_EQ(FindNvidiaGpu(root_), ""); }

TEST_F(HostGpuTest, ADriverWithoutGpusIsNone) {
  std::filesystem::create_directories(root_ / "proc/driver/nvidia/gpus");
  EXPECT_EQ(FindNvidiaGpu(root_), "");
}

TEST_F(HostGpuTest, FindsTheDeviceFile) {
  std::ofstream(root_ / "dev/nvidia0").put('x');
  EXPECT_EQ(FindNvidiaGpu(root_), (root_ / "dev/nvidia0").string());
}

TEST_F(HostGpuTest, FindsTheDriversList) {
  std::filesystem::create_directories(root_ / "proc/driver/nvidia/gpus/0000:01:00.0");
  EXPECT_EQ(FindNvidiaGpu(root_), (root_ / "proc/driver/nvidia/gpus/0000:01:00.0").string());
}

}  // namespace
}  // namespace voxserve::host_gpu_test
