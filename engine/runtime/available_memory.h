#pragma once

// These functions tell how much memory the process may use, and how much it uses.
//
// Any thread may call these functions. A limit that cannot be read counts as no limit.

#include <cstdint>
#include <filesystem>

namespace voxserve {

// Returns bytes: the machine's memory, or the limit of a cgroup (version 1 or 2) that contains the process, if that is
// less. Returns the largest int64 if neither can be read. root: the folder that holds proc and sys; for tests.
int64_t AvailableMemoryBytes(const std::filesystem::path& root = "/");

// Returns the bytes of the process in physical memory, without pages of mapped files, which the system may drop.
int64_t ResidentBytes();

}  // namespace voxserve
