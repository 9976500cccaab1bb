#pragma once

// PointCloud is a point cloud to send to the server. It is the protobuf message that is sent
// (proto/voxserve/v1/point_cloud.proto documents every field), so the points are in memory only once. Fill it by hand
// (a ROS PointCloud2 is copied field by field, with PointFieldTypeOfRos for the datatypes), from floats with
// PointCloudFromFloats, or from a file with ReadPointCloud (client/cpp/io/point_cloud_reader.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/point_field_type.h"
#include "voxserve/v1/point_cloud.pb.h"

namespace voxserve::client {

using PointCloud = v1::PointCloud;
using PointField = v1::PointField;

// Returns a cloud with packed float32 fields of these names. points: [num_points, names.size()], row after row. x, y, z
// are in metres, intensity is 0..1 (for another range set the field's scale).
PointCloud PointCloudFromFloats(const std::vector<std::string>& names, const float* points, uint64_t num_points);

// Returns the field with this name, or the only one whose name differs only in upper and lower case; nullptr if the
// cloud has neither. The server finds a model's fields by the same rule.
const PointField* FindField(const PointCloud& cloud, absl::string_view name);

// Returns, for every point, the first value of the field as raw * scale + shift. Returns INVALID_ARGUMENT if the cloud
// has no such field, or if the size of its data does not match its fields and number of points.
absl::StatusOr<std::vector<float>> FieldValues(const PointCloud& cloud, absl::string_view name);
// The same without rounding to float.
absl::StatusOr<std::vector<double>> FieldDoubles(const PointCloud& cloud, absl::string_view name);
// The same without scale and shift.
absl::StatusOr<std::vector<double>> FieldRawValues(const PointCloud& cloud, absl::string_view name);

}  // namespace voxserve::client
