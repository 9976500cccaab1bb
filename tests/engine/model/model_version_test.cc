// Tests how a version of a model is loaded from its folder, and that the problems of all its files are told.

#include "engine/model/model_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/status/status.h"
#include "engine/base/error_reason.h"
#include "tests/support/model_folder.h"

namespace voxserve::model_version_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;
using voxserve::support::WriteFile;

TEST(ReadVersionPolicyTest, NeedsTheConfigAlone) {
  const TemporaryFolder root;
  Problems problems;
  EXPECT_EQ(ReadVersionPolicy(root.path(), &problems).latest, 0U);
  WriteFile(root.path() / "config.textproto", "version_policy { latest: 2 }");
  EXPECT_EQ(ReadVersionPolicy(root.path(), &problems).latest, 2U);
  EXPECT_THAT(problems, IsEmpty());
  WriteFile(root.path() / "config.textproto", "version_policy { latest: 2 } max_points: 99999999999");
  EXPECT_EQ(ReadVersionPolicy(root.path(), &problems).latest, 0U) << "a config that is broken says nothing";
  EXPECT_THAT(problems, ElementsAre(HasSubstr("max_points")));
}

TEST(LoadModelVersionTest, LoadsTheVersionAskedFor) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.config = "classes { id: 1 name: \"car\" } max_points: 9";
  model.WriteTo(root.path(), 1);
  model.Replace("for tests", "newer").WriteTo(root.path(), 7);
  const absl::StatusOr<LoadedModel> first = LoadModelVersion(root.path(), 1);
  const absl::StatusOr<LoadedModel> newer = LoadModelVersion(root.path(), 7);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  EXPECT_EQ(first->graph.description, "for tests");
  EXPECT_EQ(newer->graph.description, "newer");
  EXPECT_EQ(first->config.classes[1].name, "car");
  EXPECT_EQ(first->config.max_points, 9);
  EXPECT_NE(first->content, newer->content);
  EXPECT_EQ(LoadModelVersion(root.path(), 1)->content, first->content);
  WriteFile(root.path() / "config.textproto", "max_points: 10");
  EXPECT_NE(LoadModelVersion(root.path(), 1)->content, first->content);
}

TEST(LoadModelVersionTest, TheConfigIsOptional) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  const absl::StatusOr<LoadedModel> model = LoadModelVersion(root.path(), 1);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->config.classes.size(), 3U);
  EXPECT_EQ(model->config.max_points, 2'000'000);
}

TEST(LoadModelVersionTest, TellsTheProblemsOfAllFilesAtOnce) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.Replace("epsilon: 0.001", "epsilon: -1");
  model.weights.erase("head.bias");
  model.config = "classes { id: 900 color: \"red\" } ignore_label: 1";
  model.WriteTo(root.path());
  const absl::Status status = LoadModelVersion(root.path(), 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadModel);
  EXPECT_THAT(ProblemsOf(status),
              ElementsAre("node \"norm\": epsilon is -1; it must be finite and not negative",
                          "tensor \"head.bias\": is missing; node \"head\" needs it with shape [3]",
                          "config.textproto: class 900 has color \"red\"; it must look like \"#1e90ff\""));
}

TEST(LoadModelVersionTest, AConfigAloneCanBreakAModel) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.config = "ignore_label: 1";
  model.WriteTo(root.path());
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()),
              ElementsAre("config.textproto: ignore_label 1 is a class; the network has 3 classes, 0 to 2"));
}

TEST(LoadModelVersionTest, AConfigThatCannotBeReadIsAProblem) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  const std::filesystem::path config = root.path() / "config.textproto";
  const auto expect_problem = [&](const char* why) {
    EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()), ElementsAre(HasSubstr(why)));
    Problems problems;
    ReadVersionPolicy(root.path(), &problems);
    EXPECT_THAT(problems, ElementsAre(HasSubstr(why)));
    std::filesystem::remove(config);
  };
  std::filesystem::create_symlink("nowhere", config);
  expect_problem("config.textproto: cannot be read (No such file or directory)");
  std::filesystem::create_symlink("config.textproto", config);
  expect_problem("config.textproto: cannot be read (Too many levels of symbolic links)");
  std::filesystem::create_directory(config);
  expect_problem("config.textproto: cannot be read (no regular file)");
}

TEST(LoadModelVersionTest, AMissingVersionIsAProblem) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  EXPECT_THAT(
      ProblemsOf(LoadModelVersion(root.path(), 2).status()),
      ElementsAre(HasSubstr("model.textproto: cannot be read"), HasSubstr("weights.safetensors: cannot be read")));
}

TEST(ProblemsTest, OfOtherErrorsTheMessage) {
  EXPECT_THAT(ProblemsOf(absl::InternalError("odd")), ElementsAre("odd"));
  EXPECT_THAT(ProblemsOf(absl::OkStatus()), IsEmpty());
  EXPECT_TRUE(StatusOfProblems("model", {}).ok());
}

TEST(ProblemsTest, NamesWithLineBreaksStayOneProblem) {
  const TemporaryFolder root;
  SmallModel().Replace("[\"both\"]", "[\"bo\\nth\"]").WriteTo(root.path());
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()),
              ElementsAre("node \"head\": its input \"bo\\nth\" does not exist"));
}

}  // namespace
}  // namespace voxserve::model_version_test
