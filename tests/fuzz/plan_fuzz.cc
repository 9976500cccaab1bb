// The fuzzer's input is a plan file.

#include "engine/tuner/plan_file.h"
#include "tests/fuzz/fuzz.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(plan) {
  const auto plan = ParsePlan(fuzz::Text(data, size), "plan.textproto");
  if (!plan.ok()) {
    FUZZ_CHECK(plan.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  // A plan that is written as text and read again must be the same plan.
  const std::string text = PlanText(*plan);
  const auto again = ParsePlan(text, "plan.textproto");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(PlanText(*again) == text);
  return 0;
}
