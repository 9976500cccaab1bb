#pragma once

// NumPy files, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
//
// Reads a file's contents as a cloud; ReadPointCloud picks the reader. `spec` is null where the caller named no fields.
// Errors are INVALID_ARGUMENT and do not name the file: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

absl::StatusOr<PointCloud> ReadNpy(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
