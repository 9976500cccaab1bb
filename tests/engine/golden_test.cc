// Compares the trained MinkUNet on real scans, on the CPU and a GPU, with stored results of TorchSparse 2.1 and of a
// NumPy pass (tests/golden). These two agree within 2.7e-5.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/executor/cpu_executor.h"
#include "kernels/coordinates/coordinate_key.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::golden_test {
namespace {

// One way to compute, and its largest allowed error of a logit. A label must be the golden one if the golden logits of
// the two best classes differ by more than clear_margin.
struct GoldenVariant {
  Variant variant;
  float tolerance = 5e-4f;
  float clear_margin = 1e-3f;
};

const Variant kCpuFloat32 = {.name = "CpuFloat32"};
const Variant kCudaFloat16 = {.name = "CudaFloat16",
                              .device = support::Device::kCuda,
                              .precision = ModelConfig::Precision::kFloat16,
                              .plan = kDefaultCudaConvPlan};

std::vector<GoldenVariant> AllVariants() {
  const auto on_cuda = [](const std::string& name, ModelConfig::Precision precision,
                          kernels::GroupingOptions grouping = {}) {
    Variant variant{
        .name = name, .device = support::Device::kCuda, .precision = precision, .plan = kDefaultCudaConvPlan};
    variant.plan.grouping = grouping;
    return variant;
  };
  const auto gathered = [&](const std::string& name, ModelConfig::Precision precision) {
    Variant variant = on_cuda(name, precision);
    variant.plan.dataflow = Dataflow::kGatherGemmScatter;
    return variant;
  };
  using Precision = ModelConfig::Precision;
  using kernels::Grouping;
  return {
      {kCpuFloat32},
      {on_cuda("CudaFloat32", Precision::kFloat32)},
      {on_cuda("CudaFloat32Separate", Precision::kFloat32, {.grouping = Grouping::kSeparate})},
      {on_cuda("CudaFloat32Symmetric", Precision::kFloat32, {.grouping = Grouping::kSymmetric})},
      {on_cuda("CudaFloat32Fixed", Precision::kFloat32, {.grouping = Grouping::kFixed})},
      {on_cuda("CudaFloat32Dense", Precision::kFloat32, {.epsilon = 1, .bmm_max_rows = kernels::kNoLimit})},
      {on_cuda("CudaTfloat32", Precision::kTfloat32), 0.2f, 0.4f},
      {kCudaFloat16, 0.4f, 0.8f},
      {on_cuda("CudaBfloat16", Precision::kBfloat16), 1.0f, 2.0f},
      {gathered("CudaTfloat32Gathered", Precision::kTfloat32), 0.2f, 0.4f},
      {gathered("CudaFloat16Gathered", Precision::kFloat16), 0.4f, 0.8f},
      {gathered("CudaBfloat16Gathered", Precision::kBfloat16), 1.0f, 2.0f},
  };
}

void ExpectGolden(const GoldenScan& scan, const InferResult& output, const GoldenVariant& allowed) {
  ASSERT_TRUE(output.status.ok()) << output.status;
  const auto classes = static_cast<size_t>(scan.num_classes);
  ASSERT_EQ(output.labels().size(), scan.labels.size());
  ASSERT_EQ(output.scores().size(), scan.labels.size() * classes);
  EXPECT_EQ(output.counts.voxels, scan.num_voxels());
  EXPECT_EQ(output.counts.used, scan.num_points());
  const std::vector<int64_t> voxels = scan.PointToVoxel();
  float largest_error = 0;
  int64_t compared = 0, doubtful = 0, doubtful_equal = 0, wrong = 0;
  for (size_t i = 0; i < voxels.size(); ++i) {
    const float* golden = scan.LogitsOf(voxels[i]);
    for (size_t c = 0; golden != nullptr && c < classes; ++c) {
      const float error = std::abs(output.scores()[i * classes + c] - golden[c]);
      largest_error = std::isnan(error) ? INFINITY : std::max(largest_error, error);
      ++compared;
    }
    const bool is_clear = scan.margins.at(static_cast<size_t>(voxels[i])) > allowed.clear_margin;
    if (!is_clear) ++doubtful;
    if (!is_clear && output.labels()[i] == scan.labels[i]) ++doubtful_equal;
    if (is_clear && output.labels()[i] != scan.labels[i]) ++wrong;
  }
  EXPECT_GE(compared, static_cast<int64_t>(scan.logits.size()));  // every stored logit belongs to at least one point
  EXPECT_LE(largest_error, allowed.tolerance);
  EXPECT_EQ(wrong, 0) << doubtful << " points were in doubt and not compared";
  const int64_t equal = scan.num_points() - doubtful + doubtful_equal - wrong;
  testing::Test::RecordProperty("largest_error", absl::StrCat(largest_error));
  testing::Test::RecordProperty("equal_labels", absl::StrCat(equal, " of ", scan.num_points()));
  // At least 99% of all points must have the golden label, including points in doubt.
  EXPECT_GE(equal, scan.num_points() - scan.num_points() / 100);
}

class GoldenTest : public testing::TestWithParam<std::tuple<std::string, GoldenVariant>> {};

TEST_P(GoldenTest, LogitsAndLabelsAgree) {
  const auto& [name, allowed] = GetParam();
  SKIP_WITHOUT(allowed.variant.device);
  const auto runner = DeviceRunner::Create({.device = allowed.variant.device});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto program = (*runner)->Compile(model->graph, allowed.variant);
  ASSERT_TRUE(program.ok()) << program.status();
  const auto scan = LoadGoldenScan(name);
  ASSERT_TRUE(scan.ok()) << scan.status();
  const BatchReport output = (*runner)->Run(*program, {&scan->cloud}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  ExpectGolden(*scan, output.samples[0], allowed);
  EXPECT_FALSE(output.geometry_on_cpu);
}

INSTANTIATE_TEST_SUITE_P(AllScans, GoldenTest,
                         testing::Combine(testing::Values("pandaset_063", "pandaset_070"),
                                          testing::ValuesIn(AllVariants())),
                         [](const auto& param_info) {
                           return std::get<0>(param_info.param) + std::get<1>(param_info.param).variant.name;
                         });

// Tests a batch of a real scan, one point, no point, and another real scan. Each sample must get the same result as
// alone.
class GoldenBatchTest : public testing::TestWithParam<support::Device> {};

// Tests --deterministic on a GPU: a scan gives the same bytes in any batch. (A CPU gives each request its own batch.)
TEST(GoldenCudaTest, DeterministicProgramsGiveTheBytesOfTheScanAlone) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto model = LoadMinkUNetModel();
  const auto scan_070 = LoadGoldenScan("pandaset_070"), scan_063 = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(model.ok() && scan_070.ok() && scan_063.ok());
  const float point[] = {90.0f, -30.0f, 5.5f, 0.25f};
  const auto one_point = PointCloud::FromFloats({"x", "y", "z", "intensity"}, point, 1);
  ASSERT_TRUE(one_point.ok());
  const std::vector<const PointCloud*> clouds = {&scan_070->cloud, &*one_point, &scan_063->cloud, &scan_070->cloud};
  for (const auto precision : {ModelConfig::Precision::kFloat16, ModelConfig::Precision::kFloat32}) {
    Variant variant = kCudaFloat16;
    variant.precision = precision;
    variant.is_deterministic = true;
    const auto program = (*runner)->Compile(model->graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    const BatchReport batch = (*runner)->Run(*program, clouds, true);
    ASSERT_TRUE(batch.status.ok()) << batch.status;
    for (size_t i = 0; i < clouds.size(); ++i) {
      const BatchReport alone = (*runner)->Run(*program, {clouds[i]}, true);
      ASSERT_TRUE(alone.status.ok()) << alone.status;
      EXPECT_EQ(alone.samples[0].labels(), batch.samples[i].labels()) << "sample " << i;
      EXPECT_TRUE(alone.samples[0].scores() == batch.samples[i].scores()) << "sample " << i;
    }
  }
}

TEST_P(GoldenBatchTest, MixedSizesAgreeAndEqualTheScanAlone) {
  SKIP_WITHOUT(GetParam());
  Variant variant = GetParam() == support::Device::kCpu ? kCpuFloat32 : kCudaFloat16;
  variant.precision = ModelConfig::Precision::kFloat32;
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto program = (*runner)->Compile(model->graph, variant);
  ASSERT_TRUE(program.ok()) << program.status();
  const auto scan_070 = LoadGoldenScan("pandaset_070");
  const auto scan_063 = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan_070.ok() && scan_063.ok());
  const float point[] = {10.0f, -3.0f, 0.5f, 0.25f};
  const auto one_point = PointCloud::FromFloats({"x", "y", "z", "intensity"}, point, 1);
  const auto nothing = PointCloud::FromFloats({"x", "y", "z", "intensity"}, nullptr, 0);
  ASSERT_TRUE(one_point.ok() && nothing.ok());

  const std::vector<const PointCloud*> clouds = {&scan_070->cloud, &*one_point, &*nothing, &scan_063->cloud};
  const BatchReport batch = (*runner)->Run(*program, clouds, true);
  ASSERT_TRUE(batch.status.ok()) << batch.status;
  ASSERT_EQ(batch.samples.size(), 4u);
  ExpectGolden(*scan_070, batch.samples[0], {variant});
  ExpectGolden(*scan_063, batch.samples[3], {variant});
  EXPECT_EQ(batch.samples[1].counts.voxels, 1);
  ASSERT_EQ(batch.samples[1].labels().size(), 1u);
  EXPECT_LT(batch.samples[1].labels()[0], 12);
  EXPECT_TRUE(batch.samples[2].status.ok());
  EXPECT_TRUE(batch.samples[2].labels().empty());

  for (size_t i = 0; i < clouds.size(); ++i) {
    const BatchReport alone = (*runner)->Run(*program, {clouds[i]}, true);
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    EXPECT_EQ(alone.samples[0].labels(), batch.samples[i].labels()) << "sample " << i;
    ASSERT_EQ(alone.samples[0].scores().size(), batch.samples[i].scores().size());
    for (size_t j = 0; j < alone.samples[0].scores().size(); ++j) {
      ASSERT_NEAR(alone.samples[0].scores()[j], batch.samples[i].scores()[j], 1e-4f)
          << "sample " << i << " score " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GoldenBatchTest, support::AllDevices(), support::DeviceName);

TEST(GoldenGeometryTest, EveryLevelHasTheSitesOfTheNumPyPass) {
  const auto program = LoadMinkUNet();
  const auto scan = LoadGoldenScan("pandaset_070");
  const auto golden = support::ReadNpz(support::SourceDir() + "/tests/golden/pandaset_070_intermediate.npz");
  ASSERT_TRUE(program.ok() && scan.ok() && golden.ok());
  kernels::ThreadPool pool(2);
  ExecutionContext context{.device = "cpu", .pool = &pool};
  CpuExecutor executor(&context);
  ASSERT_TRUE(executor.Run(*program, {.cloud = scan->cloud}, {}).status.ok());
  const kernels::CoordinateKey layout(3);
  for (int level = 0; level < 5; ++level) {
    const support::NpyArray& coords = golden->at(absl::StrCat("x", level, "_coords"));
    std::vector<uint64_t> expected;
    for (int64_t row = 0; row < coords.shape[0]; ++row) {
      const int32_t* c = coords.data<int32_t>() + row * 3;
      expected.push_back(layout.Pack(0, {c[0], c[1], c[2], 0}));
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_THAT(executor.geometry().keys(level), testing::ElementsAreArray(expected)) << "level " << level;
  }
}

TEST(GoldenDeterminismTest, ThreadsDoNotChangeABit) {
  const auto program = LoadMinkUNet();
  const auto scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(program.ok() && scan.ok());
  std::vector<std::vector<float>> scores;
  for (const int num_threads : {1, 3}) {
    const auto runner = DeviceRunner::Create({.num_threads = num_threads});
    ASSERT_TRUE(runner.ok());
    const BatchReport output = (*runner)->Run(*program, {&scan->cloud}, true);
    scores.emplace_back(output.samples.at(0).scores().begin(), output.samples.at(0).scores().end());
  }
  EXPECT_EQ(scores[0], scores[1]);
}

// A context must give the same bytes when it runs alone and while other contexts run scans of other sizes.
TEST(GoldenDeterminismTest, ConcurrentLoadDoesNotChangeABit) {
  SKIP_WITHOUT(support::Device::kCuda);
  const auto model = LoadMinkUNetModel();
  const auto scan = LoadGoldenScan("pandaset_063");
  const auto other = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(model.ok() && scan.ok() && other.ok());
  const auto scores_of = [&](DeviceRunner& runner, const Program& program, const GoldenScan& of) {
    const BatchReport output = runner.Run(program, {&of.cloud}, true);
    const absl::Span<const float> scores = output.samples.at(0).scores();
    return std::vector<float>(scores.begin(), scores.end());
  };
  const auto runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(model->graph, kCudaFloat16);
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<float> alone = scores_of(**runner, *program, *scan);

  std::atomic<bool> stop{false};
  std::vector<std::thread> load;
  for (int i = 0; i < 2; ++i) {
    load.emplace_back([&] {
      const auto own = DeviceRunner::Create({.device = support::Device::kCuda});
      ASSERT_TRUE(own.ok()) << own.status();
      const auto own_program = (*own)->Compile(model->graph, kCudaFloat16);
      ASSERT_TRUE(own_program.ok()) << own_program.status();
      while (!stop) {
        scores_of(**own, *own_program, *other);
        EXPECT_EQ(scores_of(**own, *own_program, *scan), alone);
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(scores_of(**runner, *program, *scan), alone) << "run " << i;
  stop = true;
  for (std::thread& thread : load) thread.join();
}

}  // namespace
}  // namespace voxserve::golden_test
