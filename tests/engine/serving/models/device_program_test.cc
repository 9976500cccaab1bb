// Tests that the compilation of a model ends when it is asked to.

#include "engine/serving/models/device_program.h"

#include <gtest/gtest.h>

#include <stop_token>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/model/model_version.h"
#include "tests/support/model_folder.h"
#include "tests/support/test_device.h"

namespace voxserve::device_program_test {
namespace {

class MakeProgramTest : public ::testing::TestWithParam<support::Device> {
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, MakeProgramTest, support::AllDevices(), support::DeviceName);

TEST_P(MakeProgramTest, EndsWhenItIsAsked) {
  const support::TemporaryFolder folder;
  support::SmallModel().WriteTo(folder.path());
  const absl::StatusOr<LoadedModel> loaded = LoadModelVersion(folder.path(), 1);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const absl::StatusOr<std::vector<Device>> devices =
      OpenDevices(GetParam() == support::Device::kCpu ? "cpu" : "cuda:0", /*memory_limit_bytes=*/0);
  ASSERT_TRUE(devices.ok()) << devices.status();
  std::stop_source stop;
  const auto make = [&] {
    return MakeProgram(loaded->graph, loaded->config, devices->front(), false, stop.get_token()).status();
  };
  EXPECT_TRUE(make().ok());
  stop.request_stop();
  EXPECT_EQ(ReasonOf(make()), error_reason::kDraining);
}

}  // namespace
}  // namespace voxserve::device_program_test
