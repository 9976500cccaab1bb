#pragma once

// ReadRaw reads files of packed points without a header: .bin, .pcd.bin, and files of other extensions for which the
// caller gives a field spec.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Returns INVALID_ARGUMENT if the contents are not a whole number of points. The error does not name the file; its
// caller, ReadPointCloud, adds the name.
absl::StatusOr<PointCloud> ReadRaw(std::string contents, const FieldSpec& spec);

}  // namespace voxserve::client
