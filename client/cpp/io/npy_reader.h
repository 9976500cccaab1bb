#pragma once

// Reads NumPy files, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
//
// Takes a file's contents and returns a cloud; ReadPointCloud chooses the reader. `spec` is null if the caller gave no
// fields. Errors are INVALID_ARGUMENT without the file's name: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

absl::StatusOr<PointCloud> ReadNpy(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
