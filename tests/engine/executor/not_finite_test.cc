// Tests points whose logits are NaN or infinite: they get the ignore label and scores of 0, and are counted. All other
// points keep their results, in the same cloud and in other clouds of the batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/executor/graph_builder.h"

namespace voxserve::not_finite_test {
namespace {

using Precision = ModelConfig::Precision;

constexpr int kNumClasses = 3;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The parameters of a test. Each layer of the network makes values a little larger, so that the feature `overflow`
// leaves the range of the precision after the second layer.
struct Case {
  std::string name;
  support::Device device;
  Precision precision;
  float overflow;  // a feature, which is itself within the precision's range
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Graph Widening(bool is_on_points) {
  GraphBuilder b(1);
  int rows = is_on_points ? b.PointFeatures() : 0;
  for (int layer = 0; layer < 4; ++layer) rows = b.Linear(rows, 64, true);
  return b.Finish(b.Linear(rows, kNumClasses, true));
}

// Returns a cloud in which every point has its own voxel, except the last point, which shares the voxel of the point
// before it; the voxel has the features of that point. The two points before these two are out of range and not a
// number. The points in `overflowing` have the feature `overflow`.
PointCloud MakeCloud(int num_points, const std::set<int>& overflowing, float overflow) {
  std::vector<float> values;
  for (int i = 0; i < num_points; ++i) {
    float x = static_cast<float>(i % 7);
    if (i == num_points - 4) x = 100;
    if (i == num_points - 3) x = kNan;
    if (i == num_points - 1) x = values[static_cast<size_t>(4 * (i - 1))];
    const int row = i == num_points - 1 ? i - 1 : i;
    values.insert(values.end(), {x, static_cast<float>(row / 7 % 5), static_cast<float>(row / 35),
                                 overflowing.contains(i) ? overflow : 0.25f});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), values.size() / 4);
}

class NotFiniteTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam().device);
    auto runner = DeviceRunner::Create({.device = GetParam().device});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  Program Compile(const Graph& graph, int bytes_per_label = 1) {
    const auto [name, device, precision, overflow] = GetParam();
    auto program = runner_->Compile(
        graph, {.device = device, .precision = precision, .plan = DefaultPlanOf(device, precision)}, bytes_per_label);
    EXPECT_TRUE(program.ok()) << program.status();
    return *std::move(program);
  }

  std::unique_ptr<DeviceRunner> runner_;
};

const std::vector<Case>& Cases() {
  static const auto* const cases =
      new std::vector<Case>{{"Cpu", support::Device::kCpu, Precision::kFloat32, 3e38f},
                            {"CudaFloat32", support::Device::kCuda, Precision::kFloat32, 3e38f},
                            {"CudaFloat16", support::Device::kCuda, Precision::kFloat16, 6e4f},
                            {"CudaBfloat16", support::Device::kCuda, Precision::kBfloat16, 3e38f}};
  return *cases;
}

INSTANTIATE_TEST_SUITE_P(Devices, NotFiniteTest, testing::ValuesIn(Cases()),
                         [](const auto& made) { return made.param.name; });

std::vector<int> LabelsOf(const InferResult& sample, int bytes_per_label) {
  const NamedOutput& labels = *sample.Find(NamedOutput::kLabels);
  if (bytes_per_label == 1) return {labels.values<uint8_t>().begin(), labels.values<uint8_t>().end()};
  return {labels.values<uint16_t>().begin(), labels.values<uint16_t>().end()};
}

TEST_P(NotFiniteTest, PointsGetTheIgnoreLabelAndAreCountedByCloud) {
  constexpr int kNumPoints = 100, kLast = kNumPoints - 1;
  const std::vector<std::set<int>> overflowing = {{0, 5, 17, 40, 95}, {}, {1, kLast - 1}};
  for (const bool is_on_points : {false, true}) {
    for (const auto& [bytes_per_label, ignore_label] : {std::pair(1, 255), std::pair(1, 7), std::pair(2, 60'000)}) {
      SCOPED_TRACE(testing::Message() << "on points " << is_on_points << ", ignore label " << ignore_label);
      const Program program = Compile(Widening(is_on_points), bytes_per_label);
      std::vector<PointCloud> clouds, good_clouds;
      for (const std::set<int>& points : overflowing) {
        clouds.push_back(MakeCloud(kNumPoints, points, GetParam().overflow));
        good_clouds.push_back(MakeCloud(kNumPoints, {}, 0));
      }
      const auto run = [&](const std::vector<PointCloud>& batch) {
        return runner_->Run(program, {&batch[0], &batch[1], &batch[2]}, true, {.ignore_label = ignore_label});
      };
      const BatchReport expected = run(good_clouds), output = run(clouds);
      ASSERT_TRUE(output.status.ok()) << output.status;
      for (size_t s = 0; s < clouds.size(); ++s) {
        const InferResult& sample = output.samples[s];
        ASSERT_TRUE(sample.status.ok()) << sample.status;
        EXPECT_EQ(expected.samples[s].counts.not_finite, 0);
        // The last point gets its voxel's row, which has the features of the point before, unless points have their own
        // rows.
        const bool last_is_good = is_on_points || !overflowing[s].contains(kLast - 1);
        EXPECT_EQ(sample.counts.not_finite, static_cast<int64_t>(overflowing[s].size()) + (last_is_good ? 0 : 1));
        EXPECT_EQ(sample.counts.used, kNumPoints - 2);
        EXPECT_EQ(sample.counts.out_of_range, 1);
        EXPECT_EQ(sample.counts.invalid, 1);
        const std::vector<int> labels = LabelsOf(sample, bytes_per_label);
        const std::vector<int> good_labels = LabelsOf(expected.samples[s], bytes_per_label);
        ASSERT_EQ(labels.size(), kNumPoints);
        for (int i = 0; i < kNumPoints; ++i) {
          const bool is_good = i == kLast ? last_is_good : !overflowing[s].contains(i);
          const auto at = static_cast<size_t>(i);
          EXPECT_EQ(labels[at], is_good ? good_labels[at] : ignore_label) << "cloud " << s << " point " << i;
          for (int c = 0; c < kNumClasses; ++c) {
            const size_t value = at * kNumClasses + static_cast<size_t>(c);
            EXPECT_EQ(sample.scores()[value], is_good ? expected.samples[s].scores()[value] : 0.0f)
                << "cloud " << s << " point " << i;
          }
        }
      }
    }
  }
}

TEST_P(NotFiniteTest, ABatchAfterABrokenOneCountsFromZero) {
  const Program program = Compile(Widening(false));
  std::set<int> all;
  for (int i = 0; i < 100; ++i) all.insert(i);
  const PointCloud broken = MakeCloud(100, all, GetParam().overflow), good = MakeCloud(100, {}, 0);
  for (int round = 0; round < 3; ++round) {
    const BatchReport output = runner_->Run(program, {&broken}, false);
    ASSERT_TRUE(output.status.ok()) << output.status;
    EXPECT_EQ(output.samples[0].counts.not_finite, 98);
    EXPECT_THAT(LabelsOf(output.samples[0], 1), testing::Each(255));
    EXPECT_EQ(output.samples[0].num_not_finite_boxes, 0);
    EXPECT_EQ(runner_->Run(program, {&good}, false).samples[0].counts.not_finite, 0);
  }
}

TEST_P(NotFiniteTest, OnlyAnsweredPointsOfSeveralSweepsCount) {
  const Program program = Compile(Widening(false));
  const PointCloud broken = MakeCloud(100, {3, 50}, GetParam().overflow);
  InferTask task{.cloud = broken};
  for (int age = 0; age < 2; ++age) {
    // The points of the older sweep are in the same voxels as those of the newest.
    auto sweep = std::make_shared<Sweep>();
    sweep->cloud = broken;
    task.sweeps.push_back({.sweep = std::move(sweep)});
  }
  const BatchReport output = runner_->Run(program, std::vector<InferTask>{task});
  ASSERT_TRUE(output.status.ok()) << output.status;
  ASSERT_TRUE(output.samples[0].status.ok()) << output.samples[0].status;
  EXPECT_EQ(output.samples[0].labels().size(), 100u);
  EXPECT_EQ(output.samples[0].counts.used, 2 * 98);
  EXPECT_EQ(output.samples[0].counts.not_finite, 2);
}

TEST_P(NotFiniteTest, CandidatesOfBoxesAreCountedByCloudAndNoBoxes) {
  constexpr kernels::Conv2dGeometry k1x1 = {.kernel_size = {1, 1}, .padding = {0, 0}};
  GraphBuilder b(2);
  int rows = 0;
  for (int layer = 0; layer < 4; ++layer) rows = b.Linear(rows, 64, true);
  const int bev = b.ToBev(rows);
  std::vector<int> images;
  for (const int channels : {2, 2, 1, 3, 2}) images.push_back(b.Conv2d(bev, k1x1, channels, true));
  images[3] = b.Activation(images[3], kernels::ActivationFunction::kTanh);  // logarithms of sizes
  const int decoded = b.CenterHead(images, {.num_classes = 2, .class_ids = {0, 1}, .max_boxes = 30});
  const int nms = b.Nms({decoded}, {.iou_threshold = 0.5f, .max_boxes_in = 30, .max_boxes_out = 30});
  const Program program = Compile(b.FinishBoxes(nms, 2));
  const PointCloud broken = MakeCloud(100, {0, 17}, GetParam().overflow), good = MakeCloud(100, {}, 0);
  const BatchReport output = runner_->Run(program, {&good, &broken}, false);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.samples[0].num_not_finite_boxes, 0);
  EXPECT_EQ(output.samples[1].num_not_finite_boxes, 2 * 2) << "two classes of two cells";
  EXPECT_EQ(output.samples[1].counts.not_finite, 0) << "these are points";
  EXPECT_FALSE(output.samples[0].boxes().empty());
  for (const InferResult& sample : output.samples) {
    for (const float value : sample.Find(NamedOutput::kBoxes)->values<float>()) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace voxserve::not_finite_test
