#pragma once

// ReadPcd reads PCD files, http://pointclouds.org/documentation/tutorials/pcd_file_format.html.
//
// The function converts a file's contents to a cloud. Its caller is ReadPointCloud (point_cloud_reader.h), which
// chooses the reader by the extension. spec: the caller's field spec, or null if there is none. Errors are
// INVALID_ARGUMENT without the file's name, which ReadPointCloud adds.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Skips padding (fields named _). Integers of 8 bytes become float64. Ignores the viewpoint (PCD's sensor pose). Where
// the page says nothing, it does as PCL's reader: a field of COUNT 0 is none; without SIZE and TYPE all fields are
// float32; without HEIGHT the cloud is one row; without WIDTH its width follows from POINTS; a bool (TYPE B) is a byte.
absl::StatusOr<PointCloud> ReadPcd(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
