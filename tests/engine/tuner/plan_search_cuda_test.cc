#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/compiler/plan.h"
#include "engine/tuner/plan_search.h"
#include "engine/tuner/result_guard.h"
#include "tests/engine/device_runner.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/measured_scales.h"

// Tests the plan search on a real GPU, with a trained network on a real scan.

namespace voxserve::plan_search_cuda_test {
namespace {

using Precision = ModelConfig::Precision;

class PlanSearchCudaTest : public ::testing::TestWithParam<Precision> {};

TEST_P(PlanSearchCudaTest, FindsAPlanThatComputesTheSame) {
  SKIP_WITHOUT(support::Device::kCuda);
  const bool is_int8 = GetParam() == Precision::kInt8;
  if (is_int8 && !MultipliesInInt8(support::Device::kCuda)) GTEST_SKIP() << "this GPU does not multiply in 8 bits";
  absl::StatusOr<LoadedModel> model = LoadMinkUNetModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<GoldenScan> scan = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(scan.ok()) << scan.status();
  if (is_int8) {
    ASSERT_TRUE(SetMeasuredScales(scan->cloud, model->graph).ok());
  }
  absl::StatusOr<std::unique_ptr<DeviceRunner>> runner = DeviceRunner::Create({.device = support::Device::kCuda});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const ConvPlan plan = DefaultPlanOf(support::Device::kCuda, GetParam());
  const absl::StatusOr<Program> program =
      (*runner)->Compile(model->graph, {.device = support::Device::kCuda, .precision = GetParam(), .plan = plan});
  ASSERT_TRUE(program.ok()) << program.status();
  const auto run = [&](const PlanTable& plans, const InferTask& scan_input, const ScanRunOptions& wanted) {
    InferTask sample = scan_input;
    sample.return_scores = wanted.return_scores;
    return (*runner)->executor().Run(*program, sample, RunLimits(),
                                     {.plans = &plans, .times_convs = wanted.times_convs});
  };

  const InferTask input{.cloud = scan->cloud};
  const absl::StatusOr<SearchResult> found =
      SearchPlan(*program, run, {&input, 1}, {.repeats = 3, .time_limit = absl::Seconds(20)});
  ASSERT_TRUE(found.ok()) << found.status();
  for (const std::string& note : found->notes) GTEST_LOG_(INFO) << note;
  ASSERT_EQ(found->buckets.size(), 1u);
  EXPECT_GT(found->buckets[0].tuned_time, absl::ZeroDuration());
  EXPECT_LE(found->buckets[0].tuned_time, found->buckets[0].default_time);
  ASSERT_EQ(found->convs[0].size(), program->convs.size());
  for (const ConvReport& conv : found->convs[0]) {
    EXPECT_GT(conv.default_time, absl::ZeroDuration()) << conv.node;
    EXPECT_GT(conv.tuned_time, absl::ZeroDuration()) << conv.node;
  }

  const PlanTable tuned(*program, {found->buckets[0].bucket});
  const BatchReport expected = run(program->default_plans, input, {.return_scores = true});
  const BatchReport first = run(tuned, input, {.return_scores = true});
  const BatchReport second = run(tuned, input, {.return_scores = true});
  ASSERT_EQ(WhyFailed(expected) + WhyFailed(first) + WhyFailed(second), "");
  EXPECT_EQ(WhyDeviates(*program, expected.samples[0], first.samples[0]), "");
  EXPECT_TRUE(HaveSameBytes(first.samples[0], second.samples[0]));
  // Sums of whole numbers are exact, so no plan changes a byte.
  EXPECT_TRUE(!is_int8 || HaveSameBytes(first.samples[0], expected.samples[0]));
}

INSTANTIATE_TEST_SUITE_P(, PlanSearchCudaTest,
                         ::testing::Values(Precision::kFloat16, Precision::kBfloat16, Precision::kFloat32,
                                           Precision::kInt8));

}  // namespace
}  // namespace voxserve::plan_search_cuda_test
