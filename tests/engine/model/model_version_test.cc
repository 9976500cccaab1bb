// Tests how a version of a model is loaded from its folder, and that the problems of all its files are told.

#include "engine/model/model_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/model/text_file.h"
#include "tests/support/model_folder.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve::model_version_test {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
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

TEST(LoadModelVersionTest, AVersionsOwnConfigIsReadInPlaceOfTheModels) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.config = "max_points: 9 max_voxels: 7";
  model.WriteTo(root.path(), 1);
  model.WriteTo(root.path(), 2);
  EXPECT_EQ(ConfigPathOf(root.path(), 2), root.path() / "config.textproto");
  WriteFile(root.path() / "2/config.textproto", "max_points: 8 version_policy { latest: 1 }");
  EXPECT_EQ(ConfigPathOf(root.path(), 2), root.path() / "2/config.textproto");
  const absl::StatusOr<LoadedModel> first = LoadModelVersion(root.path(), 1), second = LoadModelVersion(root.path(), 2);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(first->config.max_points, 9);
  EXPECT_EQ(second->config.max_points, 8);
  EXPECT_EQ(second->config.max_voxels, 0) << "the model's config is not read too";
  Problems problems;
  EXPECT_EQ(ReadVersionPolicy(root.path(), &problems).latest, 0U) << "the policy is the model's";
  WriteFile(root.path() / "2/config.textproto", "ignore_label: 1");
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 2).status()),
              ElementsAre(HasSubstr("2/config.textproto: ignore_label 1 is a class")));
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

TEST(ProblemsTest, TheFirstAreListedAndTheOthersCounted) {
  Problems problems;
  for (int i = 1; i <= 1'000'000; ++i) problems.Add(absl::StrCat("problem ", i));
  EXPECT_EQ(problems.size(), 1'000'000U);
  EXPECT_TRUE(problems.is_full());
  EXPECT_THAT(problems, SizeIs(1'000'000));
  const std::vector<std::string> lines = problems.Lines();
  ASSERT_EQ(lines.size(), Problems::kMostListed + 1);
  EXPECT_EQ(lines[0], "problem 1");
  EXPECT_EQ(lines[99], "problem 100");
  EXPECT_EQ(lines[100], "and 999900 more");
  const absl::Status status = StatusOfProblems("model \"m\"", problems);
  EXPECT_THAT(std::string(status.message()), StartsWith("model \"m\" has 1000000 problems: problem 1; problem 2; "));
  EXPECT_THAT(std::string(status.message()), EndsWith("; problem 100; and 999900 more"));
  EXPECT_EQ(ProblemsOf(status).size(), 1'000'000U);
  EXPECT_EQ(ProblemsOf(status).Lines(), lines);
  Problems more{"first"};
  more.Add(problems);
  EXPECT_EQ(more.size(), 1'000'001U);
  EXPECT_EQ(more.Lines().back(), "and 999901 more");
}

TEST(ProblemsTest, LongOnesAreCutAtACharacter) {
  std::string name;
  for (int i = 0; i < 100'000; ++i) name += "\u00e9";
  const Problems problems{"a" + name};
  EXPECT_EQ(problems.begin()->size(), Problems::kMaxProblemBytes - 1 + 3);
  EXPECT_THAT(*problems.begin(), EndsWith("\u00e9..."));
}

TEST(LoadModelVersionTest, WhatAFileMayTakeIsReserved) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.WriteTo(root.path());
  const auto load_within = [&](int64_t limit) {
    MemoryBudget budget(limit);
    absl::StatusOr<MemoryBudget::Reservation> memory = budget.Reserve(MemoryBudget::Use::kModels, 0);
    return LoadModelVersion(root.path(), 1, {.memory = &*memory}).status();
  };
  EXPECT_TRUE(load_within(1 << 20).ok());
  WriteFile(root.path() / "1/model.textproto", model.graph + std::string(1 << 20, '\n'));
  EXPECT_TRUE(load_within(64 << 20).ok());
  EXPECT_EQ(ReasonOf(load_within(16 << 20)), error_reason::kOutOfMemory);
  WriteFile(root.path() / "1/model.textproto", model.graph);
  WriteFile(root.path() / "config.textproto", std::string(1 << 20, '\n'));
  EXPECT_TRUE(load_within(64 << 20).ok());
  EXPECT_EQ(ReasonOf(load_within(16 << 20)), error_reason::kOutOfMemory);
  WriteFile(root.path() / "config.textproto", "");
  WriteFile(root.path() / "1/weights.safetensors", support::SafetensorsFile(std::string(1 << 20, ' '), ""));
  EXPECT_EQ(ReasonOf(load_within(64 << 20)), error_reason::kBadModel);
  EXPECT_EQ(ReasonOf(load_within(8 << 20)), error_reason::kOutOfMemory);
}

TEST(LoadModelVersionTest, EndsWhenItIsAsked) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.WriteTo(root.path());
  std::stop_source stop;
  EXPECT_TRUE(LoadModelVersion(root.path(), 1, {.stop = stop.get_token()}).ok());
  stop.request_stop();
  EXPECT_EQ(ReasonOf(LoadModelVersion(root.path(), 1, {.stop = stop.get_token()}).status()), error_reason::kDraining);
  model.weights.clear();
  model.WriteTo(root.path());
  EXPECT_EQ(ReasonOf(LoadModelVersion(root.path(), 1, {.stop = stop.get_token()}).status()), error_reason::kDraining)
      << "what is missing then may be missing because the load ended";
}

// Text that is nested so deeply that a parser which calls itself for each level would need more than a thread's stack.
class DeepTextTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, DeepTextTest,
                         testing::Values("nodes { ", "a { ", "a < ", "[", "a: [{ ", "a: [< ", "[a.b] { ", "nodes: [{ ",
                                         "nodes { voxelize { a { "));

TEST_P(DeepTextTest, IsAProblem) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  std::string deep = GetParam() == std::string("[") ? "a: " : "";
  for (int i = 0; i < 300'000; ++i) deep += GetParam();
  constexpr char kProblem[] = "Message is too deep, the parser exceeded the configured recursion limit of 32.";
  WriteFile(root.path() / "config.textproto", deep);
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()).Lines(), Contains(HasSubstr(kProblem)));
  Problems problems;
  ReadVersionPolicy(root.path(), &problems);
  EXPECT_THAT(problems, Contains(HasSubstr(kProblem)));
  fs::remove(root.path() / "config.textproto");
  WriteFile(root.path() / "1/model.textproto", deep);
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()).Lines(), Contains(HasSubstr(kProblem)));
}

TEST(LoadModelVersionTest, ANestingOfThirtyIsStillRead) {
  // No format of this project needs it; the limit must not be met by accident.
  Problems problems;
  model::v1::Model parsed;
  std::string text = "a: ";
  for (int i = 0; i < 30; ++i) text += "[";
  ParseTextProto(text + "1" + std::string(30, ']'), "model.textproto", &parsed, &problems);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("has no field named \"a\"")));
}

TEST(LoadModelVersionTest, FilesOfATebibyteAreNotRead) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  WriteFile(root.path() / "config.textproto", "");
  fs::resize_file(root.path() / "config.textproto", uint64_t{1} << 40);
  fs::resize_file(root.path() / "1/model.textproto", uint64_t{1} << 40);
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()),
              ElementsAre("model.textproto: cannot be read (it has 1099511627776 bytes; at most 8388608 are read)",
                          "config.textproto: cannot be read (it has 1099511627776 bytes; at most 8388608 are read)"));
}

TEST(ProblemsTest, NamesWithLineBreaksStayOneProblem) {
  const TemporaryFolder root;
  SmallModel().Replace("[\"both\"]", "[\"bo\\nth\"]").WriteTo(root.path());
  EXPECT_THAT(ProblemsOf(LoadModelVersion(root.path(), 1).status()),
              ElementsAre("node \"head\": its input \"bo\\nth\" does not exist"));
}

}  // namespace
}  // namespace voxserve::model_version_test
