// Tests the memory limit of the process: that of the machine, or of a cgroup (version 1 or 2), read from fake files.

#include "engine/runtime/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "tests/support/model_folder.h"

namespace voxserve::available_memory_test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class AvailableMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMachine() { Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n"); }
  std::filesystem::path root() const { return folder_.path(); }

  support::TemporaryFolder folder_;
};

TEST_F(AvailableMemoryTest, IsTheMachinesWithoutACgroup) {
  WriteMachine();
  EXPECT_EQ(AvailableMemoryBytes(root()), 16 * kGiB);
}

TEST_F(AvailableMemoryTest, IsTheSmallestLimitOnTheWayOfVersion2) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), 16 * kGiB);
  Write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), 4 * kGiB);
  Write("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), kGiB);
}

TEST_F(AvailableMemoryTest, AContainerHasTheLimitAtTheTopUnlessItIsBeyondTheMachine) {
  WriteMachine();
  Write("proc/self/cgroup", "0::/\n");
  for (const auto& [limit, expected] : {std::pair("2147483648\n", 2 * kGiB), {"1099511627776\n", 16 * kGiB}}) {
    Write("sys/fs/cgroup/memory.max", limit);
    EXPECT_EQ(AvailableMemoryBytes(root()), expected) << limit;
  }
}

TEST_F(AvailableMemoryTest, ReadsVersion1) {
  WriteMachine();
  Write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), 16 * kGiB) << "no limit is a very large one";
  Write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "3221225472\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), 3 * kGiB);
}

TEST_F(AvailableMemoryTest, NothingThatCanBeReadIsNoLimit) {
  EXPECT_EQ(AvailableMemoryBytes(root()), std::numeric_limits<int64_t>::max());
  Write("proc/meminfo", "nonsense");
  Write("proc/self/cgroup", "nonsense\n::\n0::/../..\n");
  EXPECT_EQ(AvailableMemoryBytes(root()), std::numeric_limits<int64_t>::max());
}

TEST_F(AvailableMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(AvailableMemoryBytes(), int64_t{100} << 20);
  EXPECT_LT(AvailableMemoryBytes(), std::numeric_limits<int64_t>::max());
  EXPECT_GT(ResidentBytes(), 0);
  EXPECT_LT(ResidentBytes(), AvailableMemoryBytes());
}

}  // namespace
}  // namespace voxserve::available_memory_test
