#pragma once

// The folders of a test's files. A build knows its own folders. For a program that was copied to another machine,
// environment variables with the macros' names replace them. Targets link voxserve_test_paths.

#include <cstdlib>
#include <string>

namespace voxserve::support {

inline std::string FolderFromEnvironment(const char* variable, const char* of_the_build) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : of_the_build;
}

// The repository, with tests/golden, deploy/models and deploy/scans.
inline std::string SourceDir() { return FolderFromEnvironment("VOXSERVE_SOURCE_DIR", VOXSERVE_SOURCE_DIR); }

// The build folder, with server/voxserve.
inline std::string BinaryDir() { return FolderFromEnvironment("VOXSERVE_BINARY_DIR", VOXSERVE_BINARY_DIR); }

// Real scans that may not be part of the repository. Tests that need them skip if they are missing.
inline std::string SharedData() { return FolderFromEnvironment("VOXSERVE_SHARED_DATA", VOXSERVE_SHARED_DATA); }

}  // namespace voxserve::support
