#pragma once

// Finds out whether this machine has an NVIDIA GPU, from the kernel driver's files only. main uses it to log
// that a server on the CPU leaves a GPU unused, also in a build without CUDA.

#include <filesystem>
#include <string>

namespace voxserve {

// Returns a file that shows that the machine has an NVIDIA GPU, or "" if there is none. root: "/" except in tests.
std::string FindNvidiaGpu(const std::filesystem::path& root = "/");

}  // namespace voxserve
