#pragma once

// PointCloudFromVoxels makes a cloud from voxels: integer coordinates and features, as training code has them. The
// model's `voxelize` node must have voxel size 1 and origin 0, and read the features f0, f1, ... The Python function
// voxserve.export.from_torch makes such a model if it is called without `points`.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns a cloud with a point for each voxel: int32 fields x, y, z, t, then float32 fields f0, f1, ... coordinates:
// [num_voxels, num_axes], of any sign, 1 to 4 axes, in the model's order (x, y, z, t). features: [num_voxels,
// channels], row after row. The sum of axes and channels is at most 256. Returns INVALID_ARGUMENT if sizes do not
// match, two voxels have the same coordinates, a feature is not finite, or a coordinate exceeds the server's range:
// -130,944 to 130,943 with 3 axes, -3,968 to 3,967 with 4, and 2^24 in each direction with fewer.
absl::StatusOr<PointCloud> PointCloudFromVoxels(absl::Span<const int32_t> coordinates, int num_axes,
                                                absl::Span<const float> features, int channels);

}  // namespace voxserve::client
