#pragma once

// Whether this machine has an NVIDIA GPU, asked of the kernel driver's files alone, so that a build without CUDA can
// say what it leaves unused.

#include <filesystem>
#include <string>

namespace voxserve {

// The file that gives the GPU away, "" where there is none. root: "/" but for tests.
std::string FindNvidiaGpu(const std::filesystem::path& root = "/");

}  // namespace voxserve
