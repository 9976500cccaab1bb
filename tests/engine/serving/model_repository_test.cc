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
