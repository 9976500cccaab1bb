// Tests RegularFile with files that change, that are too large, or that are no files.

#include "engine/base/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <string>

namespace voxserve {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class RegularFileTest : public ::testing::Test {
 protected:
  RegularFileTest() { std::ofstream(path_) << "0123456789"; }
  ~RegularFileTest() override { fs::remove_all(folder_); }

  static std::string MakeFolder() {
    std::string name = (fs::temp_directory_path() / "regular_file_XXXXXX").string();
    return mkdtemp(name.data());
  }
  std::string ReasonFor(const fs::path& path, int64_t max_bytes = 100) {
    return std::string(ReadRegularFile(path, max_bytes).status().message());
  }

  const fs::path folder_ = MakeFolder();
  const fs::path path_ = folder_ / "file";
};

TEST_F(RegularFileTest, IsReadInParts) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->num_bytes(), 10);
  std::string content;
  EXPECT_TRUE(file->ReadUntil(3, &content).ok());
  EXPECT_EQ(content, "012");
  fs::rename(path_, folder_ / "other");  // the file that was opened is read on
  EXPECT_TRUE(file->ReadUntil(10, &content).ok());
  EXPECT_EQ(content, "0123456789");
}

TEST_F(RegularFileTest, ALargeFileIsNotRead) {
  EXPECT_EQ(*ReadRegularFile(path_, 10), "0123456789");
  EXPECT_EQ(ReasonFor(path_, 9), "it has 10 bytes; at most 9 are read");
  fs::resize_file(path_, uint64_t{1} << 40);
  EXPECT_EQ(ReasonFor(path_), "it has 1099511627776 bytes; at most 100 are read");
}

TEST_F(RegularFileTest, WhatIsNoFileIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder_ / "device");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(ReasonFor(folder_ / "pipe"), "no regular file");
  EXPECT_EQ(ReasonFor(folder_ / "device"), "no regular file");
  EXPECT_EQ(ReasonFor(folder_), "no regular file");
  EXPECT_EQ(ReasonFor(folder_ / "loop"), "Too many levels of symbolic links");
  EXPECT_EQ(ReasonFor(folder_ / "none"), "No such file or directory");
}

TEST_F(RegularFileTest, ALeaseOfAnotherProcessIsNotWaitedFor) {
  // A process that holds a lease delays those who open the file until it gives the lease up, 45 seconds at most.
  const int holder = open(path_.c_str(), O_RDWR);
  ASSERT_GE(holder, 0);
  if (fcntl(holder, F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "this file system has no leases";
  signal(SIGIO, SIG_IGN);  // by default it ends the holder of the lease
  EXPECT_EQ(ReasonFor(path_), "Resource temporarily unavailable");
  close(holder);
}

TEST_F(RegularFileTest, AFileThatBecameShorterIsAnError) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path_);
  fs::resize_file(path_, 4);
  std::string content;
  EXPECT_EQ(file->ReadUntil(10, &content).message(), "only 4 of 10 bytes");
}

TEST_F(RegularFileTest, AReadStopsWhenItIsAsked) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path_);
  std::stop_source stop;
  stop.request_stop();
  std::string content;
  EXPECT_THAT(file->ReadUntil(10, &content, stop.get_token()).message(), HasSubstr("stopped"));
}

}  // namespace
}  // namespace voxserve
