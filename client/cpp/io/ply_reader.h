#pragma once

// ReadPly reads PLY files, http://paulbourke.net/dataformats/ply/.
//
// The function converts a file's contents to a cloud. Its caller is ReadPointCloud (point_cloud_reader.h), which
// chooses the reader by the extension. spec: the caller's field spec, or null if there is none. Errors are
// INVALID_ARGUMENT without the file's name, which ReadPointCloud adds.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Skips the elements before "vertex", whose properties become the fields, and lists among its properties. A name like
// "scalar_Intensity" (from CloudCompare) becomes "intensity".
absl::StatusOr<PointCloud> ReadPly(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
