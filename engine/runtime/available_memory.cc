#include "engine/runtime/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Returns the number in a file, or kNoLimit if it has none; cgroup version 2 writes "max" for no limit.
int64_t ReadLimit(const fs::path& path) {
  int64_t bytes = 0;
  return std::ifstream(path) >> bytes && bytes > 0 ? bytes : kNoLimit;
}

// Returns the smallest limit of the cgroup and its parents. In a container the path may be the host's: then only the
// top folder exists, and folders that are missing have no limit.
int64_t SmallestLimit(const fs::path& top, const std::string& cgroup, const std::string& file) {
  fs::path folder = top;
  int64_t smallest = ReadLimit(folder / file);
  for (const fs::path& part : fs::path(cgroup).relative_path()) {
    folder /= part;
    smallest = std::min(smallest, ReadLimit(folder / file));
  }
  return smallest;
}

int64_t MachineBytes(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemTotal:") return kib * 1024;
  }
  return kNoLimit;
}

}  // namespace

int64_t AvailableMemoryBytes(const fs::path& root) {
  int64_t bytes = MachineBytes(root);
  const fs::path top = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "<number>:<controllers>:<path>"; version 2 names no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) bytes = std::min(bytes, SmallestLimit(top, parts[2], "memory.max"));
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      bytes = std::min(bytes, SmallestLimit(top / "memory", parts[2], "memory.limit_in_bytes"));
    }
  }
  return bytes;
}

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

}  // namespace voxserve
