#pragma once

// Reads files that contain only values of one type, one after the other, in this machine's byte order.

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/zip.h"

namespace voxserve::support {

// Returns the file's values and ignores an incomplete value at the end. Returns NOT_FOUND with the path if there is no
// such file.
template <typename T>
absl::StatusOr<std::vector<T>> ReadValues(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  std::vector<T> values(bytes->size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes->data(), values.size() * sizeof(T));
  return values;
}

}  // namespace voxserve::support
