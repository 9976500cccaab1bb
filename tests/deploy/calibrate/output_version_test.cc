// Tests that a version folder appears at its place in one step, and replaces an older one only if it may.

#include "deploy/calibrate/output_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/model_folder.h"

namespace voxserve::calibrate::output_version_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using voxserve::support::TemporaryFolder;
using voxserve::support::WriteFile;

class OutputVersionTest : public ::testing::Test {
 protected:
  OutputVersionTest() { WriteFile(source_ / "file", "source"); }

  absl::StatusOr<std::unique_ptr<OutputVersion>> Create(const fs::path& output, bool may_overwrite) const {
    return OutputVersion::Create(output, source_, may_overwrite);
  }
  // Expects that the output is refused since it is, or holds, the source, and that nothing changes.
  void ExpectRefused(const fs::path& output) const {
    EXPECT_THAT(std::string(Create(output, /*may_overwrite=*/true).status().message()),
                HasSubstr("the version that is calibrated; write another one"))
        << output;
    EXPECT_THAT(Names(), UnorderedElementsAre("1"));
    EXPECT_TRUE(fs::exists(source_ / "file"));
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(model_)) names.push_back(entry.path().filename().string());
    return names;
  }

  TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "models" / "7";  // so that a version folder's name is also the model's
  fs::path source_ = model_ / "1";
  fs::path output_ = model_ / "2";
};

TEST_F(OutputVersionTest, AVersionThatAppearsMeanwhileIsReplacedOnlyIfAsked) {
  for (const bool may_overwrite : {false, true}) {
    auto made = *Create(output_, may_overwrite);
    ASSERT_TRUE(made->Write("file", "new").ok());
    WriteFile(output_ / "other", "appeared meanwhile");
    const absl::Status status = made->Commit();
    made.reset();
    EXPECT_EQ(fs::exists(output_ / "other"), !may_overwrite);
    EXPECT_EQ(fs::exists(output_ / "file"), may_overwrite);
    EXPECT_THAT(Names(), UnorderedElementsAre("1", "2"));
    if (may_overwrite) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("/2 exists already; --overwrite replaces it"));
    }
  }
}

TEST_F(OutputVersionTest, AFileThatAppearsMeanwhileStaysUnlessReplaced) {
  auto made = *Create(output_, /*may_overwrite=*/false);
  WriteFile(output_, "a file");
  EXPECT_TRUE(absl::IsAlreadyExists(made->Commit()));
  EXPECT_TRUE(fs::is_regular_file(output_));
}

TEST_F(OutputVersionTest, TheVersionIsThereAtEveryMomentOfAReplacement) {
  WriteFile(output_ / "file", "0");
  std::atomic<bool> is_done = false;
  std::atomic<int> num_missing = 0, num_looks = 0;
  std::thread looker([&] {
    while (!is_done) {
      num_missing += fs::exists(output_) ? 0 : 1;
      ++num_looks;
    }
  });
  while (num_looks == 0) std::this_thread::yield();
  for (int i = 1; i <= 200; ++i) {
    const auto made = *Create(output_, /*may_overwrite=*/true);
    EXPECT_TRUE(made->Write("file", std::to_string(i)).ok());
    EXPECT_TRUE(made->Commit().ok());
  }
  is_done = true;
  looker.join();
  EXPECT_EQ(num_missing, 0) << "of " << num_looks;
  EXPECT_THAT(Names(), UnorderedElementsAre("1", "2"));
}

TEST_F(OutputVersionTest, TheSourceIsRefusedByWhateverPath) {
  ExpectRefused(source_);
  ExpectRefused(model_ / "." / ".." / "7" / "1");
  const fs::path link = folder_.path() / "link";
  fs::create_directory_symlink(model_, link);
  ExpectRefused(link / "1");
  const fs::path linked = folder_.path() / "others" / "3";
  fs::create_directories(linked.parent_path());
  fs::create_directory_symlink(source_, linked);
  ExpectRefused(linked);
  EXPECT_TRUE(fs::is_symlink(linked));
  ExpectRefused(model_);  // the model's folder, whose name is a number
}

TEST_F(OutputVersionTest, ASourceBehindALinkIsFound) {
  const fs::path link = folder_.path() / "link";
  fs::create_directory_symlink(model_, link);
  EXPECT_TRUE(absl::IsInvalidArgument(OutputVersion::Create(source_, link / "1", true).status()));
  EXPECT_TRUE(OutputVersion::Create(output_, link / "1", true).ok());
}

}  // namespace
}  // namespace voxserve::calibrate::output_version_test
