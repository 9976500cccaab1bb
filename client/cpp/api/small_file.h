#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace voxserve::client {

// Returns the bytes of a file of a certificate, a key or a token. The file may be a pipe, whose writer is waited for.
// Returns INVALID_ARGUMENT with the path and the reason if it cannot be read, or has more than 1 MiB, as a device such
// as /dev/zero has.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace voxserve::client
