#pragma once

// A point cloud on its way to the server: the wire's own message (proto/voxserve/v1/point_cloud.proto documents every
// field), so that the points are held once. Fill it by hand (a ROS PointCloud2 is copied field by field), from floats
// with PointCloudFromFloats, or from a file with ReadPointCloud (client/cpp/io/point_cloud_reader.h).

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

// Packed float32 fields named as given: points is [num_points, names.size()], row after row. x, y, z in metres,
// intensity 0..1 (another range: set the field's scale).
PointCloud PointCloudFromFloats(const std::vector<std::string>& names, const float* points, uint64_t num_points);

// nullptr where the cloud has no such field.
const PointField* FindField(const PointCloud& cloud, absl::string_view name);

// The field's first value of every point, in its canonical unit (raw * scale + shift). INVALID_ARGUMENT where the
// cloud has no such field, or its bytes do not hold what its fields and counts say.
absl::StatusOr<std::vector<float>> FieldValues(const PointCloud& cloud, absl::string_view name);

}  // namespace voxserve::client
