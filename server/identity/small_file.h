#pragma once

// ReadSmallFile reads a small file that a flag names: certificates, keys, tokens.

#include <string>

#include "absl/status/statusor.h"

namespace voxserve {

// Returns the whole content. Returns INVALID_ARGUMENT with the flag, the path and the reason if the file cannot be
// read, is not a regular file, or has more than 1 MiB. flag: the flag's name without its dashes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path);

}  // namespace voxserve
