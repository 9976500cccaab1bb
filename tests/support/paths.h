#pragma once

// Where a test finds its files. A build remembers its own folders; a program that was carried to another machine is
// told by environment variables of the macros' names. Targets link voxserve_test_paths.

#include <cstdlib>
#include <string>

namespace voxserve::support {

inline std::string FolderFromEnvironment(const char* variable, const char* of_the_build) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : of_the_build;
}

// The repository: tests/golden, deploy/models, deploy/scans.
inline std::string SourceDir() { return FolderFromEnvironment("VOXSERVE_SOURCE_DIR", VOXSERVE_SOURCE_DIR); }

// The build: server/voxserve.
inline std::string BinaryDir() { return FolderFromEnvironment("VOXSERVE_BINARY_DIR", VOXSERVE_BINARY_DIR); }

// Real scans that may not be part of the repository; tests that need them skip where they are missing.
inline std::string SharedData() { return FolderFromEnvironment("VOXSERVE_SHARED_DATA", VOXSERVE_SHARED_DATA); }

}  // namespace voxserve::support
