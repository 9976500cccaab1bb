#pragma once

// Reads a small file that a flag names: certificates, keys, tokens.

#include <string>

#include "absl/status/statusor.h"

namespace voxserve {

// Returns the whole content. INVALID_ARGUMENT with the flag, the path and the reason where the file cannot be read, is
// not a regular file, or has more than 1 MiB. flag: without its dashes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path);

}  // namespace voxserve
