#pragma once

// How much memory the process may use, and how much it uses.
//
// Threads: any. Errors: what cannot be read counts as no limit.

#include <cstdint>
#include <filesystem>

namespace voxserve {

// Returns bytes: the machine's memory, or less where a cgroup that the process is in (of version 1 or 2, or one above
// it) has a limit. The largest int64 where nothing says. root: where proc and sys lie; for tests.
int64_t AvailableMemoryBytes(const std::filesystem::path& root = "/");

// Returns the bytes in memory that are the process's own: those of files that it has mapped do not count, since the
// system may drop them.
int64_t ResidentBytes();

}  // namespace voxserve
