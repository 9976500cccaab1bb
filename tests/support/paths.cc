#include "tests/support/paths.h"

#include <cstdlib>

namespace voxserve::support {
namespace {

std::string FolderFromEnvironment(const char* variable, const char* of_the_build) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : of_the_build;
}

}  // namespace

std::string SourceDir() { return FolderFromEnvironment("VOXSERVE_SOURCE_DIR", VOXSERVE_SOURCE_DIR); }

std::string BinaryDir() { return FolderFromEnvironment("VOXSERVE_BINARY_DIR", VOXSERVE_BINARY_DIR); }

std::string SharedData() { return FolderFromEnvironment("VOXSERVE_SHARED_DATA", VOXSERVE_SHARED_DATA); }

}  // namespace voxserve::support
