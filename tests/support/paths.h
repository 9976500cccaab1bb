#pragma once

// Tells tests where their files are. The build defines these folders as macros. If a program was copied to another
// machine, environment variables with the names of the macros override them. Link voxserve_test_paths to use this
// header.

#include <cstdlib>
#include <string>

namespace voxserve::support {

inline std::string FolderFromEnvironment(const char* variable, const char* of_the_build) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : of_the_build;
}

// Returns the root of the repository, which contains tests/golden, deploy/models and deploy/scans.
inline std::string SourceDir() { return FolderFromEnvironment("VOXSERVE_SOURCE_DIR", VOXSERVE_SOURCE_DIR); }

// Returns the build folder, which contains server/voxserve.
inline std::string BinaryDir() { return FolderFromEnvironment("VOXSERVE_BINARY_DIR", VOXSERVE_BINARY_DIR); }

// Returns the folder of real scans that are not part of the repository. Tests skip if the scans are missing.
inline std::string SharedData() { return FolderFromEnvironment("VOXSERVE_SHARED_DATA", VOXSERVE_SHARED_DATA); }

}  // namespace voxserve::support
