#pragma once

// Makes clouds from voxels: integer coordinates and features, as training code has them. The model's voxelize must have
// voxel size 1, begin at 0 and read f0, f1, ..., as in a model that voxserve.export.from_torch made without `points`.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns a cloud with a point for each voxel: int32 fields x, y, z, t, then float32 fields f0, f1, ...
// coordinates: [num_voxels, num_axes] of any sign, 1 to 4 axes, in the model's order (x, y, z, t). features:
// [num_voxels, channels], row after row. The sum of axes and channels is at most 256. INVALID_ARGUMENT if sizes do not
// match, a site occurs twice, a feature is not finite, or a coordinate exceeds the server's range (131,072 - 128 cells
// in each direction with 3 axes, 3,968 with 4).
absl::StatusOr<PointCloud> PointCloudFromVoxels(absl::Span<const int32_t> coordinates, int num_axes,
                                                absl::Span<const float> features, int channels);

}  // namespace voxserve::client
