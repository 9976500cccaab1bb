// Tests which devices OpenDevices opens for the flag --devices, and its messages for devices that it cannot open.

#include "engine/runtime/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/test_device.h"

namespace voxserve::devices_test {
namespace {

using testing::HasSubstr;

TEST(OpenDevicesTest, CpuIsAlwaysThere) {
  const auto devices = OpenDevices("cpu", 0);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 1u);
  EXPECT_EQ(devices->front().id, "cpu");
  EXPECT_FALSE(devices->front().is_cuda());
}

TEST(OpenDevicesTest, EveryGpuOrElseTheCpu) {
  const auto devices = OpenDevices("", 0);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_GE(devices->size(), 1u);
  EXPECT_EQ(devices->front().id, support::HasDevice(support::Device::kCuda) ? "cuda:0" : "cpu");
}

TEST(OpenDevicesTest, BadNamesAreToldWithWhatIsThere) {
  EXPECT_EQ(OpenDevices("gpu", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(OpenDevices("gpu", 0).status().message()), HasSubstr("\"gpu\" is neither cpu nor cuda:"));
  for (const char* wrong : {"cpu,cuda:0", "cuda:", "cuda:x", "cuda:01", "cuda:-1"}) {
    EXPECT_EQ(OpenDevices(wrong, 0).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  const auto missing = OpenDevices("cuda:99", 0);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("there are: cpu"));
}

TEST(OpenDevicesTest, CudaDevicesAreOpenedOnceEach) {
  SKIP_WITHOUT(support::Device::kCuda);
  EXPECT_THAT(std::string(OpenDevices("cuda:0,cuda:0", 0).status().message()), HasSubstr("appears twice"));
  const auto devices = OpenDevices("cuda:0", int64_t{256} << 20);
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->front().pool->limit_bytes(), int64_t{256} << 20);
  EXPECT_FALSE(devices->front().name.empty());
}

}  // namespace
}  // namespace voxserve::devices_test
