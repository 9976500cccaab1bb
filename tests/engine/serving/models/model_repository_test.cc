// Tests the functions that list a model repository, and the fingerprints by which changes of files are noticed.

#include "engine/serving/models/model_repository.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/error_reason.h"
#include "engine/model/problems.h"
#include "tests/support/model_folder.h"

namespace voxserve::model_repository_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;
using voxserve::support::WriteFile;

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

TEST(ScanRepositoryTest, OfTooManyFoldersTheHighestVersionsCount) {
  const TemporaryFolder root;
  for (int i = 1; i <= kMaxVersions + 5; ++i) {
    fs::create_directories(root.path() / "m" / std::to_string(i));
    fs::create_directories(root.path() / "m" / ("other" + std::to_string(i)));
  }
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->models.size(), 1U);
  EXPECT_EQ(listing->models[0].versions.size(), static_cast<size_t>(kMaxVersions));
  EXPECT_EQ(listing->models[0].versions.front(), 6);
  EXPECT_EQ(listing->models[0].versions.back(), kMaxVersions + 5);
  ASSERT_EQ(listing->warnings.size(), 102U);
  EXPECT_THAT(listing->warnings[100], HasSubstr("m\": 905 more folders are no versions"));
  EXPECT_THAT(listing->warnings[101],
              HasSubstr("holds 1005 versions; the 1000 with the highest numbers are looked at"));
  std::vector<std::string> warnings;
  EXPECT_TRUE(ScanModel(root.path(), "m", &warnings).ok());
  EXPECT_EQ(warnings, listing->warnings);
}

TEST(ScanRepositoryTest, AModelFolderIsTheRepositoryOfThatModel) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "mine";
  SmallModel().WriteTo(root);
  fs::create_directories(root / "3");  // a version that is being copied
  fs::create_directories(root / "draft");
  fs::create_directories(folder.path() / "other");
  WriteFile(root / "config.textproto", "");
  for (const fs::path& path : {root, root / "", root / ".", folder.path() / "other" / ".." / "mine"}) {
    const absl::StatusOr<RepositoryListing> listing = ScanRepository(path);
    ASSERT_TRUE(listing.ok()) << listing.status();
    ASSERT_EQ(listing->models.size(), 1U);
    EXPECT_EQ(listing->models[0].name, "mine");
    EXPECT_THAT(listing->models[0].versions, ElementsAre(1, 3));
    EXPECT_THAT(listing->warnings, ElementsAre(HasSubstr("\"draft\" is no version")));
    EXPECT_TRUE(ScanModel(path, "mine").ok());
    EXPECT_EQ(ReasonOf(ScanModel(path, "1").status()), error_reason::kModelNotFound);
    EXPECT_EQ(ModelFolderOf(path, "mine"), path);
  }
  EXPECT_EQ(ModelFolderOf(folder.path(), "mine"), folder.path() / "mine");
}

TEST(ScanRepositoryTest, AVersionIsRefusedWithTheFoldersToName) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path() / "mine");
  const absl::Status status = ScanRepository(root.path() / "mine" / "1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is one version of a model; name the model's folder, the one above it, or the folder of all"));
}

TEST(ScanRepositoryTest, AVersionAmongTheModelsIsPassedOver) {
  const TemporaryFolder root;
  SmallModel().WriteTo(root.path() / "mine");
  fs::rename(root.path() / "mine" / "1", root.path() / "stray");
  const absl::StatusOr<RepositoryListing> listing = ScanRepository(root.path());
  ASSERT_TRUE(listing.ok());
  EXPECT_THAT(listing->models, IsEmpty());
  EXPECT_THAT(listing->warnings,
              Contains(HasSubstr("stray\" is a version itself; the repository is the folder above the model's")));
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
  WriteFile(root.path() / "1/config.textproto", "max_points: 8");
  EXPECT_NE(FingerprintOf(root.path(), 1), before);
  before = FingerprintOf(root.path(), 1);
  for (const char* const file :
       {"1/model.textproto", "1/weights.safetensors", "1/config.textproto", "config.textproto"}) {
    // Replaces a file by another one of the same size and time.
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

}  // namespace
}  // namespace voxserve::model_repository_test
