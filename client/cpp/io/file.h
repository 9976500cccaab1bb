#pragma once

// Reads and writes whole files, with errors that name the file.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace voxserve::client {

// Reads a whole file. Returns NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT if it is not a plain file or is larger
// than a message can be (2 GiB).
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes to a temporary file in the same folder and renames it, so that no reader sees half a file. Creates no folders.
absl::Status WriteFile(const std::string& path, absl::string_view contents);

}  // namespace voxserve::client
