// Tests that the compilation of a model ends when it is asked to, and what is refused in 8 bits.

#include "engine/serving/models/device_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/model/model_version.h"
#include "tests/support/model_folder.h"
#include "tests/support/test_device.h"

namespace voxserve::device_program_test {
namespace {

using ::testing::HasSubstr;

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

// Loads SmallModel in 8 bits and makes its program.
absl::Status StatusInInt8(support::Device device, const std::map<std::string, float>& scales,
                          const std::string& options = "") {
  support::TestModel model = support::SmallModel();
  for (const auto& [node, scale] : scales) model.weights[node + ".scale"] = support::FloatTensor({1}, {scale});
  model.config += "precision: PRECISION_INT8\n" + options;
  const support::TemporaryFolder folder;
  model.WriteTo(folder.path());
  const absl::StatusOr<LoadedModel> loaded = LoadModelVersion(folder.path(), 1);
  if (!loaded.ok()) return loaded.status();
  const absl::StatusOr<std::vector<Device>> devices =
      OpenDevices(device == support::Device::kCpu ? "cpu" : "cuda:0", /*memory_limit_bytes=*/0);
  if (!devices.ok()) return devices.status();
  EXPECT_EQ(MakePlanKey(loaded->graph, loaded->config, devices->front(), "").dtype, "int8");
  return MakeProgram(loaded->graph, loaded->config, devices->front()).status();
}

// All scales that SmallModel needs.
const std::map<std::string, float> kScales = {
    {"voxels", 0.1f}, {"conv", 0.1f}, {"relu", 0.1f}, {"down", 0.1f}, {"sum", 0.1f}};

TEST(Int8ProgramTest, ACpuNeedsScalesOfThisModel) {
  const absl::Status all = StatusInInt8(support::Device::kCpu, kScales);
  EXPECT_TRUE(all.ok()) << all;
  EXPECT_THAT(StatusInInt8(support::Device::kCpu, {}).message(), HasSubstr("voxserve-calibrate"));
  EXPECT_THAT(StatusInInt8(support::Device::kCpu, {{"norm", 0.1f}}).message(), HasSubstr("tensor \"norm.scale\""));
  EXPECT_THAT(StatusInInt8(support::Device::kCpu, {{"other", 0.1f}}).message(),
              HasSubstr("tensor \"other.scale\": is used by no node"));
  EXPECT_THAT(StatusInInt8(support::Device::kCpu, kScales, "int8 { float_nodes: \"none\" }").message(),
              HasSubstr("float_nodes has \"none\""));
  EXPECT_TRUE(StatusInInt8(support::Device::kCpu, kScales, "int8 { float_nodes: \"conv\" }").ok());
}

TEST(Int8ProgramTest, ALayerWithoutAScaleMustBeOneOfTheFloatNodes) {
  EXPECT_THAT(StatusInInt8(support::Device::kCpu, {{"relu", 0.1f}}).message(),
              HasSubstr("node \"head\": weights.safetensors lacks \"sum.scale\", \"conv.scale\""));
  const absl::Status named =
      StatusInInt8(support::Device::kCpu, {{"relu", 0.1f}}, "int8 { float_nodes: [\"conv\", \"up\", \"head\"] }");
  EXPECT_TRUE(named.ok()) << named;
}

TEST(Int8ProgramTest, AGpuThatCannotMultiplyIsNamedWithWhatToSet) {
  const ModelConfig int8{.precision = ModelConfig::Precision::kInt8};
  const Device gpu{.id = "cuda:1", .name = "Tesla T4", .compute_capability = "7.5"};
  const absl::Status status = CheckInt8Device(Graph{.name = "street"}, int8, gpu, /*multiplies_in_int8=*/false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadModel);
  EXPECT_EQ(status.message(),
            "model \"street\": PRECISION_INT8 needs a GPU of compute capability 8.0 or higher, or a CPU, and "
            "cuda:1 (Tesla T4) has compute capability 7.5; set precision to PRECISION_FLOAT16 in config.textproto, or "
            "serve on "
            "the CPU");
  EXPECT_TRUE(CheckInt8Device(Graph(), int8, gpu, /*multiplies_in_int8=*/true).ok());
  EXPECT_TRUE(CheckInt8Device(Graph(), ModelConfig(), gpu, /*multiplies_in_int8=*/false).ok());
}

TEST(Int8ProgramTest, AGpuFromAmpereOnLoadsItAndOlderOnesRefuseIt) {
  SKIP_WITHOUT(support::Device::kCuda);
  const absl::StatusOr<std::vector<Device>> devices = OpenDevices("cuda:0", /*memory_limit_bytes=*/0);
  ASSERT_TRUE(devices.ok()) << devices.status();
  const absl::Status status = StatusInInt8(support::Device::kCuda, kScales);
  if (devices->front().compute_capability.substr(0, 2) != "7.") {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(StatusInInt8(support::Device::kCuda, {}).message(), HasSubstr("voxserve-calibrate"));
  } else {
    EXPECT_THAT(status.message(), HasSubstr("PRECISION_FLOAT16"));
  }
}

}  // namespace
}  // namespace voxserve::device_program_test
