#pragma once

// PCD files, http://pointclouds.org/documentation/tutorials/pcd_file_format.html.
//
// Reads a file's contents as a cloud; ReadPointCloud picks the reader. `spec` is null where the caller named no fields.
// Errors are INVALID_ARGUMENT and do not name the file: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Fields of 8-byte integers and padding (named _) are skipped; the viewpoint is ignored.
absl::StatusOr<PointCloud> ReadPcd(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
