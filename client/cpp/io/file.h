#pragma once

// These functions read and write whole files; their errors name the file.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace voxserve::client {

// Returns NOT_FOUND if there is no such file, and INVALID_ARGUMENT if it is not a plain file.
absl::Status CheckFile(const std::string& path);

// Reads a whole file. Returns the errors of CheckFile, PERMISSION_DENIED, or INVALID_ARGUMENT if the file is larger than
// a message can be (2 GiB).
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes a temporary file in the same folder and renames it to `path`, so that no reader sees half a file. Does not
// create folders.
absl::Status WriteFile(const std::string& path, absl::string_view contents);

}  // namespace voxserve::client
