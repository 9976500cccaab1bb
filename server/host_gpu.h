#pragma once

// Whether this machine has an NVIDIA GPU, asked of the kernel driver's files alone, so that a build without CUDA can
// say what it leaves unused.

#include <filesystem>
#include <string>

namespace voxserve {

// Returns a file that shows that the machine has an NVIDIA GPU, or "" if there is none. root: "/" except in tests.
std::string FindNvidiaGpu(const std::filesystem::path& root = "/");

}  // namespace voxserve
