// Small CenterPoints, a small SECOND and a small SPVCNN as the exporter writes them, on a real scan, against what
// tests/oracles/network_definitions.py computes from the libraries' definitions in float64.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/serving/model_repository.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve {
namespace {

constexpr size_t kFields = 4;       // x, y, z, intensity
constexpr size_t kBoxColumns = 11;  // x, y, z, length, width, height, yaw, velocity x and y, score, class
// What the oracle's SPVCNN_POINTS are of the scan.
constexpr size_t kSpvcnnBegin = 20000, kSpvcnnEnd = 26000;

std::vector<Variant> Variants() {
  return {{.name = "Cpu"},
          {.name = "CpuGatherGemmScatter", .plan = {.dataflow = Dataflow::kGatherGemmScatter}},
          {.name = "CudaFloat32", .device = support::Device::kCuda, .plan = kDefaultCudaConvPlan}};
}

float TurnBetween(float a, float b) { return std::abs(std::remainder(a - b, 2 * static_cast<float>(M_PI))); }

// The largest difference of two boxes in any number; infinite between classes.
float Difference(const Box& box, const float* golden) {
  if (box.class_id != static_cast<int32_t>(golden[10])) return std::numeric_limits<float>::infinity();
  // The yaw has its own difference.
  const float numbers[] = {box.x,      box.y,     box.z,          box.length,     box.width,
                           box.height, golden[6], box.velocity_x, box.velocity_y, box.score};
  float largest = TurnBetween(box.yaw, golden[6]);
  for (size_t i = 0; i < 10; ++i) {
    const float difference = std::abs(numbers[i] - golden[i]);
    largest = std::isnan(difference) ? std::numeric_limits<float>::infinity() : std::max(largest, difference);
  }
  return largest;
}

class NetworksGoldenTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam().device);
    auto runner = DeviceRunner::Create({.device = GetParam().device});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    auto scan = LoadGoldenScan("pandaset_063");
    ASSERT_TRUE(scan.ok()) << scan.status();
    scan_ = *std::move(scan);
    auto golden = support::ReadNpz(support::SourceDir() + "/tests/golden/networks.npz");
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  SampleOutput Run(const std::string& name, const PointCloud& cloud) {
    const auto model = LoadModelVersion(absl::StrCat(support::SourceDir(), "/tests/golden/networks/", name), 1);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    const auto program = runner_->Compile(model->graph, GetParam());
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return {};
    BatchOutput output = runner_->Run(*program, {&cloud}, program->has_scores);
    EXPECT_TRUE(output.status.ok()) << output.status;
    if (output.samples.size() != 1) return {};
    EXPECT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
    return std::move(output.samples[0]);
  }

  // Every golden box, each once, and no other.
  void ExpectBoxes(const std::string& name, const std::string& array) {
    const SampleOutput output = Run(name, scan_.cloud);
    const std::vector<float> golden = golden_.at(array).values<float>();
    ASSERT_EQ(output.boxes.size(), golden.size() / kBoxColumns);
    ASSERT_GT(output.boxes.size(), 20u);
    std::vector<Box> left = output.boxes;
    for (size_t i = 0; i < golden.size(); i += kBoxColumns) {
      const float* const expected = golden.data() + i;
      const auto closest = std::min_element(left.begin(), left.end(), [&](const Box& a, const Box& b) {
        return Difference(a, expected) < Difference(b, expected);
      });
      EXPECT_LE(Difference(*closest, expected), 2e-3f)
          << "box " << i / kBoxColumns << " of class " << expected[10] << " at " << expected[0] << ", " << expected[1];
      left.erase(closest);
    }
  }

  std::unique_ptr<DeviceRunner> runner_;
  GoldenScan scan_;
  std::map<std::string, support::NpyArray> golden_;
};

TEST_P(NetworksGoldenTest, CenterPointOfOpenPcdet) {
  ExpectBoxes("small-centerpoint-openpcdet", "centerpoint_openpcdet_boxes");
}

TEST_P(NetworksGoldenTest, CenterPointOfDet3d) { ExpectBoxes("small-centerpoint-det3d", "centerpoint_det3d_boxes"); }

TEST_P(NetworksGoldenTest, Second) { ExpectBoxes("small-second", "second_boxes"); }

TEST_P(NetworksGoldenTest, Spvcnn) {
  const auto cloud = PointCloud::FromFloats({"x", "y", "z", "intensity"}, scan_.points.data() + kSpvcnnBegin * kFields,
                                            kSpvcnnEnd - kSpvcnnBegin);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  const SampleOutput output = Run("small-spvcnn", *cloud);
  const std::vector<float> golden = golden_.at("spvcnn_scores").values<float>();
  ASSERT_EQ(output.scores.size(), golden.size());
  const auto classes = static_cast<size_t>(golden_.at("spvcnn_scores").shape[1]);
  ASSERT_EQ(output.labels.size() * classes, golden.size());
  float largest_error = 0;
  for (size_t i = 0; i < output.labels.size(); ++i) {
    const absl::Span<const float> scores = absl::MakeConstSpan(golden).subspan(i * classes, classes);
    for (size_t c = 0; c < classes; ++c) {
      const float error = std::abs(output.scores[i * classes + c] - scores[c]);
      largest_error = std::isnan(error) ? std::numeric_limits<float>::infinity() : std::max(largest_error, error);
    }
    EXPECT_GE(scores[output.labels[i]], *std::max_element(scores.begin(), scores.end()) - 2e-3f) << "point " << i;
  }
  EXPECT_LE(largest_error, 1e-3f);
}

INSTANTIATE_TEST_SUITE_P(AllVariants, NetworksGoldenTest, testing::ValuesIn(Variants()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace voxserve
