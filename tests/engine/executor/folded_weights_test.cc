// Tests weights that are finite in the file and exceed float32 only when a batch norm is folded into them. Such a
// weight must be refused, since 0 times infinity is not 0.

#include <gtest/gtest.h>

#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/support/model_folder.h"

namespace voxserve::folded_weights_test {
namespace {

class FoldedWeightsTest : public ::testing::TestWithParam<support::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, FoldedWeightsTest, support::AllDevices(), support::DeviceName);

TEST_P(FoldedWeightsTest, ThoseThatAreNotFiniteAreRefusedByName) {
  SKIP_WITHOUT(GetParam());
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  support::TestModel good = support::SmallModel();
  good.Replace("[\"sum\", \"conv\"]", "[\"sum\", \"relu\"]");  // only the norm reads the convolution, so it is folded
  support::TestModel large_weight = good, large_mean = good;
  for (support::TestModel* const model : {&large_weight, &large_mean}) {
    model->weights["norm.weight"] = support::FloatTensor({4}, {1, 1, 10, 1});
  }
  large_weight.weights["conv.weight"] = support::FloatTensor({27, 2, 4}, std::vector<float>(27 * 2 * 4, 3e37f));
  large_mean.weights["norm.running_mean"] = support::FloatTensor({4}, {1, 1, 3e38f, 1});
  for (const Variant& variant : VariantsOf(GetParam())) {
    SCOPED_TRACE(variant.name);
    const auto check = [&](const support::TestModel& model) -> absl::Status {
      const absl::StatusOr<Graph> graph = LoadTestGraph(model);
      EXPECT_TRUE(graph.ok()) << graph.status();
      if (!graph.ok()) return absl::OkStatus();
      const absl::StatusOr<Program> program = (*runner)->Compile(*graph, variant);
      return program.ok() ? program->Check() : program.status();
    };
    EXPECT_TRUE(check(good).ok()) << check(good);
    for (const support::TestModel* const model : {&large_weight, &large_mean}) {
      const absl::Status refused = check(*model);
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_EQ(ReasonOf(refused), error_reason::kBadModel) << refused;
      EXPECT_EQ(refused.message(), "step \"conv\": a weight, with its batch norm folded in, is not finite");
    }
  }
}

}  // namespace
}  // namespace voxserve::folded_weights_test
