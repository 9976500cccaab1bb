#pragma once

// Files of packed points without a header: .bin, .pcd.bin, and any other file whose layout a field spec gives.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// INVALID_ARGUMENT where the contents are not a whole number of points. The error does not name the file:
// ReadPointCloud adds its path.
absl::StatusOr<PointCloud> ReadRaw(std::string contents, const FieldSpec& spec);

}  // namespace voxserve::client
