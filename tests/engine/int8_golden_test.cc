// Runs the trained MinkUNet in 8 bits on a real scan that its scales were not measured on, and compares the labels and
// logits with stored results of TorchSparse 2.1 in float32 (tests/golden).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/compiler/int8_values.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/measured_scales.h"

namespace voxserve::int8_golden_test {
namespace {

class Int8GoldenTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    if (!MultipliesInInt8(GetParam())) GTEST_SKIP() << "this GPU does not multiply in 8 bits";
    absl::StatusOr<LoadedModel> model = LoadMinkUNetModel();
    ASSERT_TRUE(model.ok()) << model.status();
    graph_ = std::move(model->graph);
    absl::StatusOr<GoldenScan> measured = LoadGoldenScan("pandaset_063"), scan = LoadGoldenScan("pandaset_070");
    ASSERT_TRUE(measured.ok() && scan.ok());
    measured_ = *std::move(measured);
    scan_ = *std::move(scan);
    const absl::Status status = SetMeasuredScales(measured_.cloud, graph_);
    ASSERT_TRUE(status.ok()) << status;
    constexpr auto kPrecision = ModelConfig::Precision::kInt8;
    variant_ = {
        .name = "Int8", .device = GetParam(), .precision = kPrecision, .plan = DefaultPlanOf(GetParam(), kPrecision)};
  }

  std::string NameOfLayer(size_t layer) const {
    const Int8Candidates found = FindInt8Candidates(graph_);
    const Int8Layer& named = layer < found.layers.size() ? found.layers[layer] : found.layers.back();
    return graph_.nodes[static_cast<size_t>(named.first_node)].name;
  }

  Graph graph_;
  GoldenScan measured_, scan_;
  Variant variant_;
};

INSTANTIATE_TEST_SUITE_P(Devices, Int8GoldenTest, support::AllDevices(), support::DeviceName);

TEST_P(Int8GoldenTest, LabelsAreThoseOfFloat32ButForFew) {
  variant_.float_nodes = {NameOfLayer(0), NameOfLayer(SIZE_MAX)};
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph_, variant_);
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport output = (*runner)->Run(*program, {&scan_.cloud}, /*return_scores=*/true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  const InferResult& sample = output.samples[0];
  ASSERT_EQ(sample.labels().size(), scan_.labels.size());
  int64_t num_other = 0;
  for (size_t i = 0; i < scan_.labels.size(); ++i) num_other += sample.labels()[i] != scan_.labels[i];
  EXPECT_GT(num_other, 0);  // else this network would not be in 8 bits
  EXPECT_LE(static_cast<double>(num_other), 0.006 * static_cast<double>(scan_.labels.size()));
  const std::vector<int64_t> voxel_of = scan_.PointToVoxel();
  double error = 0, magnitude = 0;
  for (size_t point = 0; point < voxel_of.size(); ++point) {
    const float* const logits = scan_.LogitsOf(voxel_of[point]);
    for (int c = 0; c < scan_.num_classes; ++c) {
      const float score = sample.scores()[point * static_cast<size_t>(scan_.num_classes) + static_cast<size_t>(c)];
      error += std::fabs(score - logits[c]);
      magnitude += std::fabs(logits[c]);
    }
  }
  EXPECT_LE(error, 0.05 * magnitude);
}

// All layers multiply in 8 bits.
TEST_P(Int8GoldenTest, WithoutLayersOfFloatsAGpuHasTheBytesOfTheCpu) {
  if (GetParam() == support::Device::kCpu) GTEST_SKIP() << "the other device is compared with this one";
  std::vector<BatchReport> outputs;
  for (const support::Device device : {support::Device::kCpu, GetParam()}) {
    const auto runner = DeviceRunner::Create({.device = device});
    ASSERT_TRUE(runner.ok()) << runner.status();
    variant_.device = device;
    variant_.plan = DefaultPlanOf(device, variant_.precision);
    const auto program = (*runner)->Compile(graph_, variant_);
    ASSERT_TRUE(program.ok()) << program.status();
    outputs.push_back((*runner)->Run(*program, {&scan_.cloud, &measured_.cloud}, /*return_scores=*/true));
    ASSERT_TRUE(outputs.back().status.ok()) << outputs.back().status;
  }
  ExpectSameBytes(outputs[1], outputs[0]);
}

// The classifier multiplies in 8 bits here: in float32 oneDNN's sums depend on the number of rows.
TEST_P(Int8GoldenTest, ABatchHasTheBytesOfItsScansWithEveryNumberOfThreads) {
  variant_.float_nodes = {NameOfLayer(0)};
  BatchReport first;
  for (const int num_threads : {1, 3}) {
    const auto runner = DeviceRunner::Create({.device = GetParam(), .num_threads = num_threads});
    ASSERT_TRUE(runner.ok()) << runner.status();
    const auto program = (*runner)->Compile(graph_, variant_);
    ASSERT_TRUE(program.ok()) << program.status();
    const bool is_large = GetParam() == support::Device::kCuda;  // on a CPU two scans take long enough
    std::vector<const PointCloud*> clouds = {&measured_.cloud, &scan_.cloud};
    if (is_large) clouds.insert(clouds.end(), {&measured_.cloud, &scan_.cloud});
    BatchReport batch = (*runner)->Run(*program, clouds, true);
    const BatchReport alone = (*runner)->Run(*program, {&scan_.cloud}, true);
    ASSERT_TRUE(batch.status.ok() && alone.status.ok()) << batch.status << alone.status;
    for (size_t sample = 1; sample < clouds.size(); sample += 2) {
      ASSERT_EQ(batch.samples[sample].outputs.size(), alone.samples[0].outputs.size());
      for (size_t i = 0; i < alone.samples[0].outputs.size(); ++i) {
        EXPECT_TRUE(batch.samples[sample].outputs[i].bytes == alone.samples[0].outputs[i].bytes) << sample << ": " << i;
      }
    }
    if (first.samples.empty()) {
      first = std::move(batch);
    } else {
      ExpectSameBytes(batch, first);
    }
  }
}

}  // namespace
}  // namespace voxserve::int8_golden_test
