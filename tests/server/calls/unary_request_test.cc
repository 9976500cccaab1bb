// Tests CheckMayInfer: which models and priorities a caller's token allows, on a FakeEngine.

#include "server/calls/unary_request.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/base/error_reason.h"
#include "tests/server/fake_engine.h"

namespace voxserve::unary_request_test {
namespace {

// Returns a caller that may use every model, at priority 1 or a less urgent one.
Caller CallerOfPriority1() {
  Token token;
  token.name = "truck";
  token.model_globs = {"*"};
  token.highest_priority = 1;
  return {.client = "token:truck", .token = std::make_shared<const Token>(token)};
}

TEST(CheckMayInferTest, ThePriorityIsChecked) {
  const FakeEngine engine({});
  const int levels = engine.GetModel("fake", 0)->priority_levels;
  ASSERT_GT(levels, 1) << "else every priority is allowed";
  EXPECT_TRUE(CheckMayInfer(CallerOfPriority1(), engine, "fake", 0, 1).ok());
  EXPECT_TRUE(CheckMayInfer(Caller(), engine, "fake", 0, 0).ok());
  const absl::Status refused = CheckMayInfer(CallerOfPriority1(), engine, "fake", 0, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(refused), "PRIORITY_TOO_HIGH");
}

// If the model is missing, the number of its levels is unknown, and so is whether priority 0 is allowed. The request
// must be refused here, since the model may be loaded before the engine looks for it.
TEST(CheckMayInferTest, APriorityThatCannotBeCheckedIsNoPriorityThatIsAllowed) {
  const FakeEngine engine({});
  const absl::Status refused = CheckMayInfer(CallerOfPriority1(), engine, "missing", 0, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(refused), "MODEL_NOT_FOUND");
  EXPECT_EQ(refused, engine.GetModel("missing", 0).status());
  EXPECT_TRUE(CheckMayInfer(CallerOfPriority1(), engine, "missing", 0, 1).ok()) << "the engine says what is wrong";
}

}  // namespace
}  // namespace voxserve::unary_request_test
