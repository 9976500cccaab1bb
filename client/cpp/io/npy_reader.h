#pragma once

// ReadNpy reads NumPy files, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
//
// The function converts a file's contents to a cloud. Its caller is ReadPointCloud (point_cloud_reader.h), which
// chooses the reader by the extension. spec: the caller's field spec, or null if there is none. Errors are
// INVALID_ARGUMENT without the file's name, which ReadPointCloud adds.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Integers of 8 bytes become float64.
absl::StatusOr<PointCloud> ReadNpy(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
