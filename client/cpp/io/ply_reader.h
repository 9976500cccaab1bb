#pragma once

// Reads PLY files, http://paulbourke.net/dataformats/ply/.
//
// Takes a file's contents and returns a cloud; ReadPointCloud chooses the reader. `spec` is null if the caller gave no
// fields. Errors are INVALID_ARGUMENT without the file's name: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Elements before "vertex" are skipped. Names like "scalar_Intensity" (from CloudCompare) lose the prefix and become
// lower case.
absl::StatusOr<PointCloud> ReadPly(std::string contents, const FieldSpec* spec);

}  // namespace voxserve::client
