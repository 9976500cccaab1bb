#pragma once

// Reads files of packed points without a header: .bin, .pcd.bin, and any other file with a field spec.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// INVALID_ARGUMENT if the contents are not a whole number of points. The error does not name the file: ReadPointCloud
// adds its path.
absl::StatusOr<PointCloud> ReadRaw(std::string contents, const FieldSpec& spec);

}  // namespace voxserve::client
