#pragma once

// PLY files, http://paulbourke.net/dataformats/ply/.
//
// Reads a file's contents as a cloud; ReadPointCloud picks the reader. `spec` is null where the caller named no fields.
// Errors are INVALID_ARGUMENT and do not name the file: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Elements before "vertex" are passed over; "scalar_Intensity" and the like (CloudCompare's names) lose the prefix and
// the capitals.
absl::StatusOr<PointCloud> ReadPly(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
