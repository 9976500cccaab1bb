// Tests ModelTable: which version a name finds, and what it says about loading, failed and removed versions.

#include "engine/serving/models/model_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/error_reason.h"

namespace voxserve::model_table_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ModelHandle Ready(const std::string& name, int64_t version) {
  auto model = std::make_shared<ServedModel>();
  model->info.name = name;
  model->info.version = version;
  model->info.state = ModelState::kReady;
  return model;
}

TEST(ModelTableTest, UnknownNamesAndVersionsListWhatIsThere) {
  ModelTable models;
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

TEST(ModelTableTest, VersionZeroIsTheNewestThatIsReady) {
  ModelTable models;
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

TEST(ModelTableTest, BrokenVersionSaysWhyAndTheOtherServes) {
  ModelTable models;
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

TEST(ModelTableTest, ASuccessorThatIsBrokenLeavesTheOldOneInService) {
  ModelTable models;
  models.SetReady(Ready("a", 1));
  models.AddLoading("a", 1);
  EXPECT_EQ(models.Describe("a", 1)->state, ModelState::kReady);
  models.SetFailed("a", 1, {"wrong"});
  EXPECT_TRUE(models.Find("a", 1).ok());
  EXPECT_EQ(models.Describe("a", 1)->state, ModelState::kReady);
  EXPECT_THAT(models.Describe("a", 1)->problems, ElementsAre("wrong"));
  EXPECT_NE(models.SetReady(Ready("a", 1)), nullptr);
  EXPECT_THAT(models.Describe("a", 1)->problems, IsEmpty());
}

TEST(ModelTableTest, AFailedVersionThatIsTriedAgainIsLoading) {
  ModelTable models;
  models.SetFailed("a", 1, {"wrong"});
  EXPECT_EQ(models.Describe("a", 1)->name, "a");
  models.AddLoading("a", 1);
  EXPECT_EQ(models.Describe("a", 1)->state, ModelState::kLoading);
  EXPECT_THAT(models.Describe("a", 1)->problems, IsEmpty());
  EXPECT_EQ(models.SetReady(Ready("a", 1)), nullptr);
}

TEST(ModelTableTest, WhatIsRemovedIsGoneAndSaysWhy) {
  ModelTable models;
  for (const int64_t version : {1, 2, 3}) models.SetReady(Ready("a", version));
  models.AddLoading("a", 4);
  EXPECT_THAT(models.Versions("a"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(models.ReadyVersions("a"), ElementsAre(1, 2, 3));
  EXPECT_EQ(models.Remove("a", 3, true)->info.version, 3);
  EXPECT_EQ(models.Remove("a", 2, false)->info.version, 2);
  EXPECT_EQ(models.Remove("a", 4, false), nullptr);
  EXPECT_EQ(models.Remove("a", 4, true), nullptr) << "twice";
  EXPECT_EQ(models.Remove("b", 1, true), nullptr);
  EXPECT_THAT(std::string(models.Find("a", 3).status().message()), HasSubstr("it was unloaded"));
  EXPECT_THAT(std::string(models.Find("a", 2).status().message()), Not(HasSubstr("it was unloaded")));
  models.SetReady(Ready("a", 3));
  models.Remove("a", 3, false);
  EXPECT_THAT(std::string(models.Find("a", 3).status().message()), Not(HasSubstr("it was unloaded")))
      << "it came back in between";
  models.Remove("a", 1, false);
  EXPECT_THAT(models.Names(), IsEmpty());
  EXPECT_THAT(models.Versions("a"), IsEmpty());
  EXPECT_THAT(models.ReadyVersions("a"), IsEmpty());
  EXPECT_EQ(ReasonOf(models.Find("a", 0).status()), error_reason::kModelNotFound);
}

TEST(ModelTableTest, ClearLetsGoOfEveryHandle) {
  ModelTable models;
  models.SetReady(Ready("a", 1));
  const std::weak_ptr<const ServedModel> watched = *models.Find("a", 1);
  models.Clear();
  EXPECT_TRUE(watched.expired());
  EXPECT_THAT(models.List(), IsEmpty());
}

TEST(ModelTableTest, HandleOutlivesItsReplacement) {
  ModelTable models;
  models.SetReady(Ready("a", 1));
  const ModelHandle old = *models.Find("a", 1);
  models.SetReady(Ready("a", 1));
  EXPECT_NE(*models.Find("a", 1), old);
  EXPECT_EQ(old->info.name, "a");
}

}  // namespace
}  // namespace voxserve::model_table_test
