#pragma once

// One reader a format, from a file's contents; ReadPointCloud picks. `spec` is null where the caller named no fields.
// Errors are INVALID_ARGUMENT and do not name the file: ReadPointCloud adds its path.

#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {

// Packed points without a header, laid out as the spec says.
absl::StatusOr<PointCloud> ReadRaw(std::string contents, const FieldSpec& spec);

// http://pointclouds.org/documentation/tutorials/pcd_file_format.html. Fields of 8-byte integers and padding (named _)
// are skipped; the viewpoint is ignored.
absl::StatusOr<PointCloud> ReadPcd(std::string contents, const FieldSpec* spec);

// http://paulbourke.net/dataformats/ply/. Elements before "vertex" are passed over; "scalar_Intensity" and the like
// (CloudCompare's names) lose the prefix and the capitals.
absl::StatusOr<PointCloud> ReadPly(std::string contents, const FieldSpec* spec);

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3.
absl::StatusOr<PointCloud> ReadNpy(std::string contents, const FieldSpec* spec);

// Gives the cloud's fields the scale and shift of the spec's entries of the same name. INVALID_ARGUMENT where the
// cloud has no such field or it has another type.
absl::Status ApplySpecByName(const FieldSpec& spec, PointCloud* cloud);

}  // namespace voxserve::client
