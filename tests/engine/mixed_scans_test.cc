// Tests scans of different sensors in one batch, with 35,000 to 177,000 points and different extents. Each scan must
// get the result that it gets alone: the same bytes if the program is deterministic, else the same up to rounding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/real_scans.h"

namespace voxserve::mixed_scans_test {
namespace {

struct MixedScans {
  std::vector<PointCloud> clouds;
  std::string missing;  // the path of the first file that is missing

  std::vector<const PointCloud*> pointers() const {
    std::vector<const PointCloud*> pointers;
    for (const PointCloud& cloud : clouds) pointers.push_back(&cloud);
    return pointers;
  }
};

MixedScans ReadMixedScans() {
  MixedScans scans;
  for (const support::RealScan& scan :
       {support::kNuScenesKeyFrame, support::kWaymoFrame, support::kSemanticKittiScan, support::kNuScenesKeyFrame}) {
    if (!std::filesystem::exists(scan.path())) {
      scans.missing = scan.path();
      break;
    }
    auto cloud = support::ReadScan(scan.format, scan.path());
    EXPECT_TRUE(cloud.ok()) << cloud.status();
    if (cloud.ok()) scans.clouds.push_back(*std::move(cloud));
  }
  return scans;
}

class MixedScansTest : public testing::TestWithParam<Variant> {};

TEST_P(MixedScansTest, EachIsAnsweredAsAlone) {
  const Variant& variant = GetParam();
  SKIP_WITHOUT(variant.device);
  const MixedScans scans = ReadMixedScans();
  if (!scans.missing.empty()) GTEST_SKIP() << "no " << scans.missing;
  const auto runner = DeviceRunner::Create({.device = variant.device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto program = (*runner)->Compile(model->graph, variant);
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport batch = (*runner)->Run(*program, scans.pointers(), true);
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  ASSERT_EQ(batch.samples.size(), scans.clouds.size());

  // Half precision rounds by about 0.001 of a value in each layer. Scores are up to 30.
  const float tolerance = variant.precision == ModelConfig::Precision::kFloat16 ? 0.25f : 1e-3f;
  for (size_t i = 0; i < scans.clouds.size(); ++i) {
    SCOPED_TRACE(i);
    const BatchReport alone = (*runner)->Run(*program, {&scans.clouds[i]}, true);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    const InferResult &expected = alone.samples[0], &actual = batch.samples[i];
    EXPECT_GT(expected.counts.voxels, 10'000);
    EXPECT_EQ(actual.counts.voxels, expected.counts.voxels);
    EXPECT_EQ(actual.counts.used, expected.counts.used);
    ASSERT_EQ(actual.labels().size(), scans.clouds[i].num_points());
    if (variant.is_deterministic) {
      EXPECT_TRUE(actual.labels() == expected.labels());
      EXPECT_TRUE(actual.scores() == expected.scores());
      continue;
    }
    ASSERT_EQ(actual.scores().size(), expected.scores().size());
    float largest_error = 0;
    for (size_t j = 0; j < expected.scores().size(); ++j) {
      const float error = std::abs(actual.scores()[j] - expected.scores()[j]);
      largest_error = std::isnan(error) ? INFINITY : std::max(largest_error, error);
    }
    EXPECT_LE(largest_error, tolerance);
  }
}

Variant OnCuda(const std::string& name, ModelConfig::Precision precision, bool is_deterministic) {
  return {.name = name,
          .device = support::Device::kCuda,
          .precision = precision,
          .plan = kDefaultCudaConvPlan,
          .is_deterministic = is_deterministic};
}

INSTANTIATE_TEST_SUITE_P(Variants, MixedScansTest,
                         testing::Values(Variant{.name = "Cpu"},
                                         OnCuda("CudaFloat32", ModelConfig::Precision::kFloat32, false),
                                         OnCuda("CudaFloat16", ModelConfig::Precision::kFloat16, false),
                                         OnCuda("CudaFloat32Deterministic", ModelConfig::Precision::kFloat32, true),
                                         OnCuda("CudaFloat16Deterministic", ModelConfig::Precision::kFloat16, true)),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace voxserve::mixed_scans_test
