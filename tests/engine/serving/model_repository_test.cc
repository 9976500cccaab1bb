#include "engine/serving/model_repository.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "engine/base/error_reason.h"
#include "engine/graph/problems.h"
#include "tests/support/model_folder.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::testing::SmallModel;
using voxserve::testing::TemporaryFolder;
using voxserve::testing::TestModel;
using voxserve::testing::WriteFile;

TEST(ScanRepositoryTest, ListsModelsAndVersionsInOrder) {
  const TemporaryFolder root;
  for (const char* const folder : {"b/2", "b/10", "b/1", "a/9223372036854775807"}) {
    fs::create_directories(root.path() / folder);
  }
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok()) << listing.status().message();
  ASSERT_EQ(listing->models.size(), 2U);
  EXPECT_EQ(listing->models[0].name, "a");
  EXPECT_THAT(listing->models[0].versions, ElementsAre(9223372036854775807));
  EXPECT_EQ(listing->models[1].name, "b");
  EXPECT_THAT(listing->models[1].versions, ElementsAre(1, 2, 10));
  EXPECT_THAT(listing->warnings, IsEmpty());
}

TEST(ScanRepositoryTest, PassesOverWhatIsNoVersionAndSaysSo) {
  const TemporaryFolder root;
  for (const char* const folder :
       {"m/1", "m/0", "m/01", "m/-1", "m/1.5", "m/9223372036854775808", "m/draft", "m/.hidden", ".git/1", "empty"}) {
    fs::create_directories(root.path() / folder);
  }
  WriteFile(root.path() / "README.md", "text");
  WriteFile(root.path() / "m/config.textproto", "");
  WriteFile(root.path() / "m/2", "a file");
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->models.size(), 1U);
  EXPECT_THAT(listing->models[0].versions, ElementsAre(1));
  const std::string passed_over = " is no version (1, 2, 3, ...) and was passed over";
  EXPECT_THAT(listing->warnings,
              ElementsAre(HasSubstr("empty\" holds no version (1, 2, 3, ...) and was passed over"),
                          HasSubstr("m\": \"-1\"" + passed_over), HasSubstr("\"0\"" + passed_over),
                          HasSubstr("\"01\"" + passed_over), HasSubstr("\"1.5\"" + passed_over),
                          HasSubstr("\"9223372036854775808\"" + passed_over), HasSubstr("\"draft\"" + passed_over)));
}

TEST(ScanRepositoryTest, AModelFolderIsNoRepository) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path());
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  EXPECT_THAT(listing->models, IsEmpty());
  EXPECT_THAT(listing->warnings,
              ElementsAre(HasSubstr("1\" is a version itself; the repository is the folder above the model's")));
}

TEST(ScanRepositoryTest, FollowsLinksToFolders) {
  const TemporaryFolder root;
  fs::create_directories(root.path() / "..data/m/1");
  fs::create_directory_symlink(root.path() / "..data/m", root.path() / "linked");
  fs::create_directory_symlink(root.path() / "nowhere", root.path() / "dangling");
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->models.size(), 1U);
  EXPECT_EQ(listing->models[0].name, "linked");
}

TEST(ScanRepositoryTest, AnEmptyRepositoryIsFine) {
  const TemporaryFolder root;
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  EXPECT_THAT(listing->models, IsEmpty());
}

TEST(ScanRepositoryTest, NotAFolder) {
  const TemporaryFolder root;
  WriteFile(root.path() / "file", "");
  EXPECT_EQ(ScanRepository(root.path() / "file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ScanRepository(root.path() / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ScanRepository("").status().code(), absl::StatusCode::kNotFound);
}

TEST(ScanModelTest, FindsOneModelAndNamesTheOthers) {
  const TemporaryFolder root;
  for (const char* const folder : {"b/2", "b/1", "a/7", "empty"}) fs::create_directories(root.path() / folder);
  const absl::StatusOr<ModelFolder> model = ScanModel(root.path(), "b");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->name, "b");
  EXPECT_THAT(model->versions, ElementsAre(1, 2));
  for (const char* const name : {"c", "empty", "B"}) {
    const absl::Status status = ScanModel(root.path(), name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ReasonOf(status), error_reason::kModelNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("there is a, b"));
  }
  EXPECT_EQ(ScanModel(root.path() / "none", "b").status().code(), absl::StatusCode::kNotFound);
}

TEST(IsModelNameTest, IsOnePartOfAPath) {
  for (const char* const name : {"a", "minkunet", "a.b", "a b", "a..", "\xc3\xbc"}) {
    EXPECT_TRUE(IsModelName(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("..a"), std::string(".git"), std::string("/"),
        std::string("/a"), std::string("a/"), std::string("a/b"), std::string("a\0", 2), std::string("\0", 1)}) {
    EXPECT_FALSE(IsModelName(name)) << name;
  }
}

TEST(FingerprintTest, ChangesWithEachFileAndWithNothingElse) {
  const TemporaryFolder root;
  TestModel model = SmallModel();
  model.config = "max_points: 9";
  model.WriteTo(root.path(), 1);
  model.WriteTo(root.path(), 2);
  std::string before = FingerprintOf(root.path(), 1);
  EXPECT_EQ(FingerprintOf(root.path(), 1), before);
  EXPECT_NE(FingerprintOf(root.path(), 2), before);
  for (const char* const other : {"1/plans/gpu.textproto", "1/notes", "2/model.textproto", "notes"}) {
    WriteFile(root.path() / other, "text");
    EXPECT_EQ(FingerprintOf(root.path(), 1), before) << other;
  }
  for (const char* const file : {"1/model.textproto", "1/weights.safetensors", "config.textproto"}) {
    // Another file in the old one's place, of the same size and time.
    const auto time = fs::last_write_time(root.path() / file);
    fs::copy_file(root.path() / file, root.path() / "copy");
    fs::last_write_time(root.path() / "copy", time);
    fs::rename(root.path() / "copy", root.path() / file);
    EXPECT_NE(FingerprintOf(root.path(), 1), before) << file;
    before = FingerprintOf(root.path(), 1);
    WriteFile(root.path() / file, "longer than it was: the same file");
    EXPECT_NE(FingerprintOf(root.path(), 1), before) << file;
    before = FingerprintOf(root.path(), 1);
    fs::remove(root.path() / file);
    EXPECT_NE(FingerprintOf(root.path(), 1), before) << file;
    before = FingerprintOf(root.path(), 1);
  }
}

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
}  // namespace voxserve
