#include "server/http/readiness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"

namespace voxserve::readiness_test {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(ReadinessTest, NeedsToBeLoadedAndAModel) {
  Readiness readiness;
  EXPECT_EQ(readiness.Get().message(), "loading models");
  readiness.OnModelState("a", 1, true);
  EXPECT_EQ(readiness.Get().message(), "loading models");
  readiness.SetLoaded();
  EXPECT_TRUE(readiness.Get().ok());
}

TEST(ReadinessTest, OneReadyModelIsEnough) {
  Readiness readiness;
  readiness.SetLoaded();
  EXPECT_EQ(readiness.Get().message(), "no model is ready");
  EXPECT_EQ(readiness.Get().code(), absl::StatusCode::kUnavailable);
  readiness.OnModelState("a", 1, true);
  readiness.OnModelState("b", 1, false);
  readiness.OnModelState("a", 2, true);
  EXPECT_TRUE(readiness.Get().ok());
  readiness.OnModelState("a", 1, false);
  EXPECT_TRUE(readiness.Get().ok());
  readiness.OnModelState("a", 2, false);
  EXPECT_EQ(ReasonOf(readiness.Get()), error_reason::kModelFailed);
}

TEST(ReadinessTest, DrainingIsForGood) {
  Readiness readiness;
  readiness.SetLoaded();
  readiness.OnModelState("a", 1, true);
  readiness.SetDraining();
  readiness.OnModelState("a", 2, true);
  EXPECT_EQ(readiness.Get().message(), "draining");
}

TEST(ReadinessTest, TellsEveryChangeOnce) {
  Readiness readiness;
  std::vector<bool> told;
  readiness.SetListener([&](const std::string& model, bool ready) {
    if (model.empty()) told.push_back(ready);
  });
  EXPECT_THAT(told, ElementsAre(false));
  readiness.OnModelState("a", 1, true);
  readiness.SetLoaded();
  readiness.OnModelState("b", 1, true);
  EXPECT_THAT(told, ElementsAre(false, true));
  readiness.SetDraining();
  readiness.SetDraining();
  EXPECT_THAT(told, ElementsAre(false, true, false));
  readiness.SetListener(nullptr);
  readiness.OnModelState("a", 1, false);
  EXPECT_THAT(told, ElementsAre(false, true, false));
}

TEST(ReadinessTest, ALateListenerHearsTheState) {
  Readiness readiness;
  readiness.OnModelState("a", 1, true);
  readiness.SetLoaded();
  std::vector<bool> told;
  readiness.SetListener([&](const std::string& model, bool ready) {
    if (model.empty()) told.push_back(ready);
  });
  EXPECT_THAT(told, ElementsAre(true));
}

TEST(ReadinessTest, TellsOfEachModelByItself) {
  Readiness readiness;
  readiness.OnModelState("a", 1, true);
  std::vector<std::pair<std::string, bool>> told;
  readiness.SetListener([&](const std::string& model, bool ready) {
    if (!model.empty()) told.emplace_back(model, ready);
  });
  EXPECT_THAT(told, ElementsAre(Pair("a", true))) << "others may still load";
  told.clear();
  readiness.OnModelState("b", 1, false);
  readiness.OnModelState("a", 2, true);
  readiness.OnModelState("a", 1, false);
  EXPECT_THAT(told, ElementsAre(Pair("b", false)));
  told.clear();
  readiness.OnModelState("a", 2, false);
  readiness.OnModelState("b", 1, true);
  readiness.SetDraining();
  EXPECT_THAT(told, ElementsAre(Pair("a", false), Pair("b", true), Pair("b", false)));
}

}  // namespace
}  // namespace voxserve::readiness_test
