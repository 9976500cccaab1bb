#pragma once

// Tells tests where their files are. The build knows these folders; if a program was copied to another machine, the
// environment variables that are named here tell others. Link voxserve_test_paths to use this header.

#include <string>

namespace voxserve::support {

// Returns the root of the repository, which contains tests/golden, deploy/models and deploy/scans
// (VOXSERVE_SOURCE_DIR).
std::string SourceDir();

// Returns the build folder, which contains server/voxserve (VOXSERVE_BINARY_DIR).
std::string BinaryDir();

// Returns the folder of real scans that are not part of the repository (VOXSERVE_SHARED_DATA). Tests skip if the scans
// are missing.
std::string SharedData();

}  // namespace voxserve::support
