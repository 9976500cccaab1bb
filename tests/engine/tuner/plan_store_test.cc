// Tests PlanStore: where it saves and finds plans, and that it passes over damaged files and says why.

#include "engine/tuner/plan_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tuner/plan_file.h"
#include "tests/engine/tuner/example_plan.h"
#include "tests/support/model_folder.h"

namespace voxserve::plan_store_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using voxserve::support::TemporaryFolder;
using voxserve::support::WriteFile;

constexpr char kFileName[] = "nvidia-h200-float16.textproto";

// Returns the example plan with this num_scans, by which the tests tell plans apart.
std::shared_ptr<const TunedPlan> PlanOf(int num_scans) {
  TunedPlan plan = ExamplePlan();
  plan.buckets[0].num_scans = num_scans;
  return std::make_shared<const TunedPlan>(std::move(plan));
}

class PlanStoreTest : public ::testing::Test {
 protected:
  // Looks for the plan with a new store, which has no plan in memory yet.
  std::optional<PlanStore::Found> FindAnew(const fs::path& plan_dir) {
    problems_.clear();
    return PlanStore(plan_dir).Find(ExampleKey(), version_folder_, problems_);
  }

  // Lists the files in the folder, hidden ones too.
  static std::vector<std::string> FilesIn(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    return names;
  }

  const TemporaryFolder root_;
  const fs::path plan_dir_ = root_.path() / "not/there/yet";
  const fs::path in_plan_dir_ = plan_dir_ / "0123456789abcdef" / kFileName;
  const fs::path version_folder_ = root_.path() / "model/1";
  const fs::path in_model_ = version_folder_ / "plans" / kFileName;
  std::vector<std::string> problems_;
};

TEST_F(PlanStoreTest, FindsNothingWhereThereIsNothing) {
  EXPECT_FALSE(FindAnew(plan_dir_));
  EXPECT_FALSE(FindAnew(""));
  EXPECT_FALSE(PlanStore("").Find(ExampleKey(), "", problems_));
  EXPECT_THAT(problems_, IsEmpty());
  EXPECT_FALSE(fs::exists(plan_dir_));
}

TEST_F(PlanStoreTest, SavesToThePlanDir) {
  PlanStore store(plan_dir_);
  const absl::StatusOr<fs::path> path = store.Save(PlanOf(7), version_folder_);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, in_plan_dir_);
  EXPECT_THAT(FilesIn(in_plan_dir_.parent_path()), ElementsAre(kFileName));
  EXPECT_FALSE(fs::exists(version_folder_));

  const auto found = FindAnew(plan_dir_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(IsEqual(*found->plan, *PlanOf(7)));
  EXPECT_EQ(found->source, "plan_dir");
  EXPECT_EQ(found->path, in_plan_dir_);
  EXPECT_FALSE(FindAnew(""));
}

TEST_F(PlanStoreTest, WithoutAPlanDirSavesToTheModel) {
  PlanStore store("");
  const absl::StatusOr<fs::path> path = store.Save(PlanOf(7), version_folder_);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, in_model_);
  const auto found = FindAnew("");
  ASSERT_TRUE(found);
  EXPECT_TRUE(IsEqual(*found->plan, *PlanOf(7)));
  EXPECT_EQ(found->source, "model");
  EXPECT_EQ(found->path, in_model_);
}

TEST_F(PlanStoreTest, MemoryHasWhatWasSavedAndWhatWasFound) {
  PlanStore store(plan_dir_);
  const auto plan = PlanOf(7);
  ASSERT_TRUE(store.Save(plan, version_folder_).ok());
  fs::remove_all(plan_dir_);
  auto found = store.Find(ExampleKey(), version_folder_, problems_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->plan, plan);
  EXPECT_EQ(found->source, "plan_dir");

  PlanStore other("");
  WriteFile(in_model_, PlanText(*PlanOf(8)));
  found = other.Find(ExampleKey(), version_folder_, problems_);
  ASSERT_TRUE(found);
  fs::remove(in_model_);
  const auto again = other.Find(ExampleKey(), version_folder_, problems_);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->plan, found->plan);
  EXPECT_EQ(again->source, "model");
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(PlanStoreTest, ThePlanDirComesFirst) {
  WriteFile(in_model_, PlanText(*PlanOf(1)));
  EXPECT_EQ(FindAnew(plan_dir_)->source, "model");
  WriteFile(in_plan_dir_, PlanText(*PlanOf(2)));
  const auto found = FindAnew(plan_dir_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->plan->buckets[0].num_scans, 2);
  EXPECT_EQ(found->source, "plan_dir");
}

TEST_F(PlanStoreTest, SaveReplacesInMemoryAndOnDisk) {
  PlanStore store(plan_dir_);
  for (const int num_scans : {1, 2}) ASSERT_TRUE(store.Save(PlanOf(num_scans), version_folder_).ok());
  EXPECT_EQ(store.Find(ExampleKey(), version_folder_, problems_)->plan->buckets[0].num_scans, 2);
  EXPECT_EQ(FindAnew(plan_dir_)->plan->buckets[0].num_scans, 2);
  EXPECT_THAT(FilesIn(in_plan_dir_.parent_path()), ElementsAre(kFileName));
}

TEST_F(PlanStoreTest, PassesOverDamagedFilesAndSaysWhy) {
  const std::string text = PlanText(ExamplePlan());
  WriteFile(in_model_, PlanText(*PlanOf(1)));
  for (const auto& [content, why] :
       std::vector<std::pair<std::string, std::string>>{{"", "has no key"},
                                                        {text.substr(0, text.size() / 2), "textproto:"},
                                                        {std::string("\0\1\2\xff", 4), "is not text"},
                                                        {text + text, "specified multiple times"}}) {
    WriteFile(in_plan_dir_, content);
    const auto found = FindAnew(plan_dir_);
    EXPECT_THAT(problems_, ElementsAre(AllOf(HasSubstr(in_plan_dir_.parent_path().string()), HasSubstr(kFileName),
                                             HasSubstr(why))));
    ASSERT_TRUE(found) << why;
    EXPECT_EQ(found->source, "model") << why;
  }
}

TEST_F(PlanStoreTest, PassesOverWhatIsNoFile) {
  fs::create_directories(in_plan_dir_);
  fs::create_directories(in_model_.parent_path());
  fs::create_symlink(in_model_, in_model_);  // a link to itself
  EXPECT_FALSE(FindAnew(plan_dir_));
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("no regular file"), HasSubstr("cannot be read")));
}

TEST_F(PlanStoreTest, OfManyProblemsShowsTheFirst) {
  std::string text = "key {}";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, " buckets { convs { node: \"n", i, "\" epsilon: 2 } }");
  WriteFile(in_plan_dir_, text);
  EXPECT_FALSE(FindAnew(plan_dir_));
  EXPECT_THAT(problems_, ElementsAre(AllOf(HasSubstr("\"n0\": epsilon is 2"), HasSubstr("; and 1994 more"))));
  EXPECT_LT(problems_[0].size(), 1000U);
}

TEST_F(PlanStoreTest, PassesOverForeignKeysAndNamesTheField) {
  using Field = std::pair<const char*, std::string PlanKey::*>;
  for (const auto& [name, field] :
       {Field{"model_digest", &PlanKey::model_digest}, Field{"device", &PlanKey::device},
        Field{"compute_capability", &PlanKey::compute_capability}, Field{"cuda_version", &PlanKey::cuda_version},
        Field{"engine_version", &PlanKey::engine_version}, Field{"dtype", &PlanKey::dtype}}) {
    TunedPlan foreign = ExamplePlan();
    foreign.key.*field = "other \"1\"\n";
    WriteFile(in_model_, PlanText(foreign));
    EXPECT_FALSE(FindAnew("")) << name;
    EXPECT_THAT(problems_, ElementsAre(HasSubstr(absl::StrCat(kFileName, ": ", name, " is \"other \\\"1\\\"\\n\", ",
                                                              "here it is \"", ExampleKey().*field, "\""))));
  }
  TunedPlan foreign = ExamplePlan();
  foreign.key.engine_version = "9";
  foreign.key.compute_capability = "8.6";
  WriteFile(in_model_, PlanText(foreign));
  EXPECT_FALSE(FindAnew(""));
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("compute_capability is \"8.6\", here it is \"9.0\"; engine_version is "
                                               "\"9\", here it is \"0.1.0\"")));
}

TEST_F(PlanStoreTest, KeysDoNotMixInMemory) {
  PlanStore store("");
  ASSERT_TRUE(store.Save(PlanOf(1), version_folder_).ok());
  TunedPlan other = ExamplePlan();
  other.key.dtype = "tf32";
  ASSERT_TRUE(store.Save(std::make_shared<const TunedPlan>(other), version_folder_).ok());
  EXPECT_EQ(store.Find(ExampleKey(), version_folder_, problems_)->plan->key.dtype, "float16");
  EXPECT_EQ(store.Find(other.key, version_folder_, problems_)->plan->key.dtype, "tf32");
  other.key.dtype = "bfloat16";
  EXPECT_FALSE(store.Find(other.key, version_folder_, problems_));
}

TEST_F(PlanStoreTest, FileNamesAreOfLettersDigitsAndDashes) {
  PlanStore store(plan_dir_);
  const auto saved = [&](const std::string& digest, const std::string& device, const std::string& dtype) {
    TunedPlan plan = ExamplePlan();
    plan.key.model_digest = digest;
    plan.key.device = device;
    plan.key.dtype = dtype;
    const absl::StatusOr<fs::path> path = store.Save(std::make_shared<const TunedPlan>(plan), version_folder_);
    EXPECT_TRUE(path.ok()) << path.status();
    return path.ok() ? path->lexically_relative(plan_dir_).string() : "";
  };
  EXPECT_EQ(saved("00ff", "AMD Ryzen 9 7950X 16-Core (tm)", "float32"),
            "00ff/amd-ryzen-9-7950x-16-core-tm-float32.textproto");
  EXPECT_EQ(saved("../../x", "../../../etc/passwd", "/"), "x/etc-passwd-unnamed.textproto");
  EXPECT_EQ(saved("", "", ""), "unnamed/unnamed-unnamed.textproto");
  EXPECT_EQ(saved("a", std::string(5000, 'G'), "tf32"), "a/" + std::string(100, 'g') + "-tf32.textproto");
}

TEST_F(PlanStoreTest, ADiskThatCannotBeWrittenLosesOnlyTheFile) {
  WriteFile(plan_dir_, "a file in the folder's place");
  WriteFile(in_model_, PlanText(*PlanOf(1)));
  PlanStore store(plan_dir_);
  const absl::Status status = store.Save(PlanOf(2), version_folder_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(in_plan_dir_.string()), HasSubstr("cannot be written")));
  const auto found = store.Find(ExampleKey(), version_folder_, problems_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->plan->buckets[0].num_scans, 2);
  EXPECT_EQ(found->source, "tuned");
  EXPECT_EQ(found->path, "");
}

TEST_F(PlanStoreTest, AReadOnlyFolderLosesOnlyTheFile) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directories(in_model_.parent_path());
  fs::permissions(in_model_.parent_path(), fs::perms::owner_read | fs::perms::owner_exec);
  PlanStore store("");
  EXPECT_EQ(store.Save(PlanOf(2), version_folder_).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(store.Find(ExampleKey(), version_folder_, problems_)->source, "tuned");
  EXPECT_THAT(FilesIn(in_model_.parent_path()), IsEmpty());
}

TEST_F(PlanStoreTest, AFailedSaveLeavesNoFileBehind) {
  fs::create_directories(in_model_);  // a folder where the file should be
  PlanStore store("");
  EXPECT_THAT(std::string(store.Save(PlanOf(1), version_folder_).status().message()), HasSubstr("rename"));
  EXPECT_THAT(FilesIn(in_model_.parent_path()), ElementsAre(kFileName));
}

TEST_F(PlanStoreTest, WithoutAnyFolderKeepsThePlanInMemory) {
  PlanStore store("");
  EXPECT_EQ(store.Save(PlanOf(1), "").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store.Find(ExampleKey(), "", problems_));
}

TEST_F(PlanStoreTest, WhatWouldNotBeReadBackIsNotSaved) {
  TunedPlan plan = ExamplePlan();
  plan.buckets[0].bucket.plan.by_node["stem.0"].grouping.epsilon = 2;
  PlanStore store(plan_dir_);
  EXPECT_EQ(store.Save(std::make_shared<const TunedPlan>(plan), version_folder_).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(store.Find(ExampleKey(), version_folder_, problems_));
  EXPECT_FALSE(fs::exists(plan_dir_));
}

TEST_F(PlanStoreTest, LeftoversOfAWriterThatDiedHarmNobody) {
  const fs::path leftover = in_model_.parent_path() / absl::StrCat(".", kFileName, ".0000000000000000.tmp");
  WriteFile(leftover, PlanText(ExamplePlan()).substr(0, 100));
  EXPECT_FALSE(FindAnew(""));
  EXPECT_THAT(problems_, IsEmpty());
  ASSERT_TRUE(PlanStore("").Save(PlanOf(3), version_folder_).ok());
  EXPECT_EQ(FindAnew("")->plan->buckets[0].num_scans, 3);
  EXPECT_TRUE(fs::exists(leftover));
}

// Two stores write one file, as two servers do, while other threads read the file and the stores' memory. Each written
// plan has another size.
TEST_F(PlanStoreTest, ReadersSeeWholePlansWhileWritersWrite) {
  PlanStore stores[2] = {PlanStore(plan_dir_), PlanStore(plan_dir_)};
  ASSERT_TRUE(stores[0].Save(PlanOf(0), version_folder_).ok());
  std::atomic<bool> is_over{false};
  std::vector<std::thread> writers, readers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(stores[writer % 2].Save(PlanOf(1 << (i % 30)), version_folder_).ok());
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      std::vector<std::string> problems;
      while (!is_over) {
        EXPECT_TRUE(stores[0].Find(ExampleKey(), version_folder_, problems));
        const auto anew = PlanStore(plan_dir_).Find(ExampleKey(), version_folder_, problems);
        ASSERT_TRUE(anew);
        EXPECT_EQ(anew->plan->buckets.size(), 2U);
      }
      EXPECT_THAT(problems, IsEmpty());
    });
  }
  for (std::thread& writer : writers) writer.join();
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_THAT(FilesIn(in_plan_dir_.parent_path()), ElementsAre(kFileName));
}

TEST_F(PlanStoreTest, OfConcurrentSavesMemoryAndDiskKeepTheSameOne) {
  PlanStore store(plan_dir_);
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 8; ++writer) {
    writers.emplace_back([&, writer] { EXPECT_TRUE(store.Save(PlanOf(writer), version_folder_).ok()); });
  }
  for (std::thread& writer : writers) writer.join();
  const auto in_memory = store.Find(ExampleKey(), version_folder_, problems_);
  const auto on_disk = FindAnew(plan_dir_);
  ASSERT_TRUE(in_memory && on_disk);
  EXPECT_TRUE(IsEqual(*in_memory->plan, *on_disk->plan));
}

}  // namespace
}  // namespace voxserve::plan_store_test
