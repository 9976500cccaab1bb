// The trained MinkUNet on real scans against what TorchSparse 2.1 and a NumPy pass computed (they agree within 2.7e-5).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/graph/executor.h"
#include "kernels/coordinate_key.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/npz.h"

namespace voxserve {
namespace {

constexpr float kLogitTolerance = 5e-4f;
constexpr float kClearMargin = 1e-3f;  // between the two best logits: then the label is not in doubt

class Runner {
 public:
  explicit Runner(int num_threads = 2) : pool_(num_threads), context_{.device = "cpu", .pool = &pool_} {}

  BatchOutput Run(const Program& program, const std::vector<const PointCloud*>& clouds) {
    std::vector<SampleInput> inputs;
    for (const PointCloud* cloud : clouds) inputs.push_back({.cloud = cloud, .return_scores = true});
    return executor_.Run(program, inputs, RunLimits());
  }

  const BatchGeometry& geometry() const { return executor_.geometry(); }

 private:
  kernels::ThreadPool pool_;
  ExecutionContext context_;
  Executor executor_{&context_};
};

void ExpectGolden(const GoldenScan& scan, const SampleOutput& output) {
  ASSERT_TRUE(output.status.ok()) << output.status;
  const auto classes = static_cast<size_t>(scan.num_classes);
  ASSERT_EQ(output.labels.size(), scan.labels.size());
  ASSERT_EQ(output.scores.size(), scan.labels.size() * classes);
  EXPECT_EQ(output.counts.voxels, scan.num_voxels());
  EXPECT_EQ(output.counts.used, scan.num_points());
  const std::vector<int64_t> voxels = scan.PointToVoxel();
  float largest_error = 0;
  int64_t doubtful = 0, wrong = 0;
  for (size_t i = 0; i < voxels.size(); ++i) {
    const float* golden = scan.logits.data() + static_cast<size_t>(voxels[i]) * classes;
    for (size_t c = 0; c < classes; ++c) {
      const float error = std::abs(output.scores[i * classes + c] - golden[c]);
      largest_error = std::isnan(error) ? INFINITY : std::max(largest_error, error);
    }
    std::vector<float> sorted(golden, golden + classes);
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    const bool is_clear = sorted[0] - sorted[1] > kClearMargin;
    if (!is_clear) ++doubtful;
    if (is_clear && output.labels[i] != scan.labels[i]) ++wrong;
  }
  EXPECT_LE(largest_error, kLogitTolerance);
  EXPECT_EQ(wrong, 0) << doubtful << " points were in doubt and not compared";
  EXPECT_LT(doubtful, scan.num_points() / 100);
}

class GoldenTest : public testing::TestWithParam<std::tuple<std::string, Dataflow>> {};

TEST_P(GoldenTest, LogitsAndLabelsAgree) {
  const auto& [name, dataflow] = GetParam();
  const auto program = LoadMinkUNet(dataflow);
  ASSERT_TRUE(program.ok()) << program.status();
  const auto scan = LoadGoldenScan(name);
  ASSERT_TRUE(scan.ok()) << scan.status();
  Runner runner;
  const BatchOutput output = runner.Run(*program, {&scan->cloud});
  ASSERT_TRUE(output.status.ok()) << output.status;
  ExpectGolden(*scan, output.samples[0]);
}

INSTANTIATE_TEST_SUITE_P(AllScans, GoldenTest,
                         testing::Combine(testing::Values("pandaset_063", "pandaset_070"),
                                          testing::Values(Dataflow::kFetchOnDemand, Dataflow::kGatherGemmScatter)),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param) +
                                  (std::get<1>(param_info.param) == Dataflow::kFetchOnDemand ? "FetchOnDemand"
                                                                                             : "GatherGemmScatter");
                         });

// One real scan, one point, nothing, another real scan: neighbours in a batch do not change each other.
TEST(GoldenBatchTest, MixedSizesAgreeAndEqualTheScanAlone) {
  const auto program = LoadMinkUNet();
  ASSERT_TRUE(program.ok()) << program.status();
  const auto scan_070 = LoadGoldenScan("pandaset_070");
  const auto scan_063 = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan_070.ok() && scan_063.ok());
  const float point[] = {10.0f, -3.0f, 0.5f, 0.25f};
  const auto one_point = PointCloud::FromFloats({"x", "y", "z", "intensity"}, point, 1);
  const auto nothing = PointCloud::FromFloats({"x", "y", "z", "intensity"}, nullptr, 0);
  ASSERT_TRUE(one_point.ok() && nothing.ok());

  Runner runner;
  const std::vector<const PointCloud*> clouds = {&scan_070->cloud, &*one_point, &*nothing, &scan_063->cloud};
  const BatchOutput batch = runner.Run(*program, clouds);
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  ASSERT_EQ(batch.samples.size(), 4u);
  ExpectGolden(*scan_070, batch.samples[0]);
  ExpectGolden(*scan_063, batch.samples[3]);
  EXPECT_EQ(batch.samples[1].counts.voxels, 1);
  ASSERT_EQ(batch.samples[1].labels.size(), 1u);
  EXPECT_LT(batch.samples[1].labels[0], 12);
  EXPECT_TRUE(batch.samples[2].status.ok());
  EXPECT_TRUE(batch.samples[2].labels.empty());

  for (size_t i = 0; i < clouds.size(); ++i) {
    const BatchOutput alone = runner.Run(*program, {clouds[i]});
    ASSERT_TRUE(alone.status.ok());
    EXPECT_EQ(alone.samples[0].labels, batch.samples[i].labels) << "sample " << i;
    ASSERT_EQ(alone.samples[0].scores.size(), batch.samples[i].scores.size());
    for (size_t j = 0; j < alone.samples[0].scores.size(); ++j) {
      ASSERT_NEAR(alone.samples[0].scores[j], batch.samples[i].scores[j], 1e-4f) << "sample " << i << " score " << j;
    }
  }
}

TEST(GoldenGeometryTest, EveryLevelHasTheSitesOfTheNumPyPass) {
  const auto program = LoadMinkUNet();
  const auto scan = LoadGoldenScan("pandaset_070");
  const auto golden = support::ReadNpz(VOXSERVE_SOURCE_DIR "/tests/golden/pandaset_070_intermediate.npz");
  ASSERT_TRUE(program.ok() && scan.ok() && golden.ok());
  Runner runner;
  ASSERT_TRUE(runner.Run(*program, {&scan->cloud}).status.ok());
  const kernels::CoordinateKey layout(3);
  for (int level = 0; level < 5; ++level) {
    const support::NpyArray& coords = golden->at(absl::StrCat("x", level, "_coords"));
    std::vector<uint64_t> expected;
    for (int64_t row = 0; row < coords.shape[0]; ++row) {
      const int32_t* c = coords.data<int32_t>() + row * 3;
      expected.push_back(layout.Pack(0, {c[0], c[1], c[2], 0}));
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(runner.geometry().keys(level), expected) << "level " << level;
  }
}

TEST(GoldenDeterminismTest, ThreadsDoNotChangeABit) {
  const auto program = LoadMinkUNet();
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(program.ok() && scan.ok());
  Runner one(1), three(3);
  const BatchOutput a = one.Run(*program, {&scan->cloud});
  const BatchOutput b = three.Run(*program, {&scan->cloud});
  ASSERT_TRUE(a.status.ok() && b.status.ok());
  EXPECT_EQ(a.samples[0].scores, b.samples[0].scores);
}

}  // namespace
}  // namespace voxserve
