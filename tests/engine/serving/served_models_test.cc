#include "engine/serving/served_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

using testing::HasSubstr;

ModelHandle Ready(const std::string& name, int64_t version) {
  auto model = std::make_shared<ServedModel>();
  model->info.name = name;
  model->info.version = version;
  model->info.state = ModelState::kReady;
  return model;
}

TEST(ServedModelsTest, UnknownNamesAndVersionsListWhatIsThere) {
  ServedModels models;
  EXPECT_THAT(std::string(models.Find("a", 0).status().message()), HasSubstr("there is none"));
  models.SetReady(Ready("a", 1));
  models.SetReady(Ready("a", 3));
  models.SetReady(Ready("b", 1));
  const absl::Status no_model = models.Find("c", 0).status();
  EXPECT_EQ(no_model.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(no_model), error_reason::kModelNotFound);
  EXPECT_THAT(std::string(no_model.message()), HasSubstr("\"c\"; there is a, b"));
  const absl::Status no_version = models.Find("a", 2).status();
  EXPECT_EQ(no_version.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(no_version), error_reason::kVersionNotFound);
  EXPECT_THAT(std::string(no_version.message()), HasSubstr("version 2; there is 1, 3"));
  EXPECT_EQ(ReasonOf(models.Find("a", -1).status()), error_reason::kVersionNotFound);
}

TEST(ServedModelsTest, VersionZeroIsTheNewestThatIsReady) {
  ServedModels models;
  models.AddLoading("a", 1);
  models.AddLoading("a", 2);
  EXPECT_EQ(models.Find("a", 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(models.Find("a", 0).status()), error_reason::kModelLoading);
  EXPECT_EQ(models.Describe("a", 0)->version, 2);
  models.SetReady(Ready("a", 1));
  EXPECT_EQ((*models.Find("a", 0))->info.version, 1);
  EXPECT_EQ(models.Describe("a", 0)->version, 1);
  EXPECT_EQ(ReasonOf(models.Find("a", 2).status()), error_reason::kModelLoading);
  models.SetReady(Ready("a", 2));
  EXPECT_EQ((*models.Find("a", 0))->info.version, 2);
}

TEST(ServedModelsTest, BrokenVersionSaysWhyAndTheOtherServes) {
  ServedModels models;
  models.SetReady(Ready("a", 1));
  models.AddLoading("a", 2);
  models.SetFailed("a", 2, {"node \"x\": wrong", "tensor \"y\": missing"});
  EXPECT_EQ((*models.Find("a", 0))->info.version, 1);
  const absl::Status failed = models.Find("a", 2).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(failed), error_reason::kModelFailed);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("node \"x\": wrong; tensor \"y\": missing"));
  const auto list = models.List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1].state, ModelState::kFailed);
  EXPECT_EQ(list[1].problems.size(), 2u);
}

TEST(ServedModelsTest, HandleOutlivesItsReplacement) {
  ServedModels models;
  models.SetReady(Ready("a", 1));
  const ModelHandle old = *models.Find("a", 1);
  models.SetReady(Ready("a", 1));
  EXPECT_NE(*models.Find("a", 1), old);
  EXPECT_EQ(old->info.name, "a");
}

}  // namespace
}  // namespace voxserve
