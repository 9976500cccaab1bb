#pragma once

// Reads PCD files, http://pointclouds.org/documentation/tutorials/pcd_file_format.html.
//
// Takes a file's contents and returns a cloud; ReadPointCloud chooses the reader. `spec` is null if the caller gave no
// fields. Errors are INVALID_ARGUMENT without the file's name: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Fields of 8-byte integers and padding (named _) are skipped; the viewpoint is ignored.
absl::StatusOr<PointCloud> ReadPcd(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
