// Tests small networks of every kind, as the exporter writes them, on a real scan, on the CPU and a GPU. The expected
// results come from tests/oracles/network_definitions.py, which computes the definitions of the libraries' layers in
// float64. The exporter's MinkUNet (deploy/models/minkunet) is tested in golden_test.cc.

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
#include "engine/model/model_version.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::networks_golden_test {
namespace {

constexpr size_t kFields = 4;  // x, y, z, intensity

// A range of the scan's points. The ranges are SPVCNN_POINTS and SEGMENTED_POINTS of the oracle
// (tests/oracles/network_definitions.py).
struct Points {
  size_t begin = 0;
  size_t end = 0;
};
constexpr Points kSpvcnnPoints = {20000, 26000}, kSegmentedPoints = {20000, 22000};

// A device and precision, and the largest allowed differences from the oracle's results.
struct NetworkVariant {
  Variant variant;
  float score_error = 1e-5f;  // largest error of a score, as a fraction of the largest score of all points
  BoxTolerance boxes = {.number = 2e-3f, .score = 2e-3f};
  double matched_boxes = 1;  // the fraction of the golden boxes, and of the answer's boxes, that must match
};

std::vector<NetworkVariant> Variants() {
  // If the oracle rounds every result to float16, it is off by up to 0.0017 of the largest score, by 0.07 in a box's
  // numbers and by 0.005 in a box's score. We allow scores six times that error, since intermediate sums may be rounded
  // too, and boxes three times that error. The rounded oracle has every golden box and at most one more. But one box in
  // ten may differ, since rounding decides if an overlap or a score is at its threshold.
  return {{{.name = "Cpu"}},
          {{.name = "CudaFloat32", .device = support::Device::kCuda, .plan = kDefaultCudaConvPlan}},
          {.variant = {.name = "CudaHalf",
                       .device = support::Device::kCuda,
                       .precision = ModelConfig::Precision::kFloat16,
                       .plan = kDefaultCudaConvPlan},
           .score_error = 1e-2f,
           .boxes = {.number = 0.2f, .score = 0.02f},
           .matched_boxes = 0.9}};
}

class NetworksGoldenTest : public testing::TestWithParam<NetworkVariant> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam().variant.device);
    auto runner = DeviceRunner::Create({.device = GetParam().variant.device});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    auto scan = LoadGoldenScan("pandaset_063");
    ASSERT_TRUE(scan.ok()) << scan.status();
    scan_ = *std::move(scan);
    auto golden = support::ReadNpz(support::SourceDir() + "/tests/golden/networks.npz");
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  InferResult Run(const std::string& name, const PointCloud& cloud) {
    const auto model = LoadModelVersion(absl::StrCat(support::SourceDir(), "/tests/golden/networks/", name), 1);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    const auto program = runner_->Compile(model->graph, GetParam().variant);
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return {};
    BatchReport output = runner_->Run(*program, {&cloud}, program->has_scores);
    EXPECT_TRUE(output.status.ok()) << output.status;
    if (output.samples.size() != 1) return {};
    EXPECT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
    return std::move(output.samples[0]);
  }

  // Expects that the answer's boxes and the golden boxes match one to one. The variant's `matched_boxes` says what
  // fraction of them must match.
  void ExpectBoxes(const std::string& name, const std::string& array) {
    const InferResult output = Run(name, scan_.cloud);
    const std::vector<BoxRow> golden = RowsOf(golden_.at(array));
    ASSERT_GT(golden.size(), 20u);
    const BoxMatches matches = MatchBoxes(RowsOf(output.boxes()), golden, GetParam().boxes);
    const double num_boxes = static_cast<double>(std::max(golden.size(), output.boxes().size()));
    EXPECT_GE(matches.num_matched, GetParam().matched_boxes * num_boxes) << matches.ToString();
    RecordProperty("boxes", matches.ToString());
  }

  // Returns a cloud of these points of the scan. If is_timed, the cloud has a fifth field t with the values of the
  // oracle's timed(): -0.05, 0.05 and 0.15 seconds in turns, as if the points came from three sweeps.
  absl::StatusOr<PointCloud> CloudOf(const Points& points, bool is_timed) {
    std::vector<std::string> fields = {"x", "y", "z", "intensity"};
    if (is_timed) fields.push_back("t");
    std::vector<float> values;
    for (size_t i = points.begin; i < points.end; ++i) {
      values.insert(values.end(), &scan_.points[i * kFields], &scan_.points[i * kFields] + kFields);
      if (is_timed) values.push_back(0.1f * static_cast<float>((i - points.begin) % 3) - 0.05f);
    }
    return PointCloud::FromFloats(fields, values.data(), points.end - points.begin);
  }

  // Expects the golden scores of every point. A point's label must be the class with the highest golden score, or one
  // whose golden score is lower by at most twice the allowed error.
  void ExpectScores(const std::string& name, const std::string& array, const Points& points, bool is_timed = false) {
    const auto cloud = CloudOf(points, is_timed);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    const InferResult output = Run(name, *cloud);
    const std::vector<float> golden = golden_.at(array).values<float>();
    ASSERT_EQ(output.scores().size(), golden.size());
    const auto classes = static_cast<size_t>(golden_.at(array).shape[1]);
    ASSERT_EQ(output.labels().size() * classes, golden.size());
    float largest = 0, largest_error = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      const float error = std::abs(output.scores()[i] - golden[i]);
      largest_error = std::isnan(error) ? std::numeric_limits<float>::infinity() : std::max(largest_error, error);
      largest = std::max(largest, std::abs(golden[i]));
    }
    const float allowed = GetParam().score_error * largest;
    EXPECT_LE(largest_error, allowed);
    RecordProperty("largest_error", absl::StrCat(largest_error, " of ", largest));
    for (size_t i = 0; i < output.labels().size(); ++i) {
      ASSERT_LT(output.labels()[i], classes) << "point " << i;
      const absl::Span<const float> scores = absl::MakeConstSpan(golden).subspan(i * classes, classes);
      EXPECT_GE(scores[output.labels()[i]], *std::max_element(scores.begin(), scores.end()) - 2 * allowed)
          << "point " << i;
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

TEST_P(NetworksGoldenTest, VoxelNext) { ExpectBoxes("small-voxelnext", "voxelnext_boxes"); }

TEST_P(NetworksGoldenTest, CenterPointOfPillars) {
  ExpectBoxes("small-centerpoint-pillar", "centerpoint_pillar_boxes");
}

TEST_P(NetworksGoldenTest, PointPillars) { ExpectBoxes("small-pointpillars", "pointpillars_boxes"); }

TEST_P(NetworksGoldenTest, Spvcnn) { ExpectScores("small-spvcnn", "spvcnn_scores", kSpvcnnPoints); }

TEST_P(NetworksGoldenTest, MinkowskiUnet) {
  ExpectScores("small-minkowski-cube", "minkowski_cube_scores", kSegmentedPoints);
}

TEST_P(NetworksGoldenTest, MinkowskiUnetOfHypercubes) {
  ExpectScores("small-minkowski-hypercube", "minkowski_hypercube_scores", kSegmentedPoints, /*is_timed=*/true);
}

TEST_P(NetworksGoldenTest, MinkowskiUnetOfHypercrosses) {
  ExpectScores("small-minkowski-hypercross", "minkowski_hypercross_scores", kSegmentedPoints, /*is_timed=*/true);
}

TEST_P(NetworksGoldenTest, MinkowskiUnetOfCubesAndCrossesInTime) {
  ExpectScores("small-minkowski-cube-cross", "minkowski_cube_cross_scores", kSegmentedPoints, /*is_timed=*/true);
}

TEST_P(NetworksGoldenTest, SparseResnet21d) { ExpectScores("small-resnet21d", "resnet21d_scores", kSegmentedPoints); }

INSTANTIATE_TEST_SUITE_P(AllVariants, NetworksGoldenTest, testing::ValuesIn(Variants()),
                         [](const auto& param_info) { return param_info.param.variant.name; });

}  // namespace
}  // namespace voxserve::networks_golden_test
