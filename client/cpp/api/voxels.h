#pragma once

// Voxels as training code made them: integer coordinates and their features. A model serves them whose voxelize has
// voxel size 1, begins at 0 and reads f0, f1, ...: such as one that voxserve.export.from_torch made without `points`.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/api/point_cloud.h"

namespace voxserve::client {

// Returns a cloud with a point for each voxel: int32 fields x, y, z, t, then float32 fields f0, f1, ...
// coordinates: [num_voxels, num_axes] of any sign, 1 to 4 axes, in the model's order (x, y, z, t). features:
// [num_voxels, channels], row after row; axes and channels are 256 at most together. INVALID_ARGUMENT where sizes do
// not fit, a site stands twice, a feature is not finite, or a coordinate is beyond what a server can hold (131,072 -
// 128 cells each way in 3 axes, 3,968 in 4).
absl::StatusOr<PointCloud> PointCloudFromVoxels(absl::Span<const int32_t> coordinates, int num_axes,
                                                absl::Span<const float> features, int channels);

}  // namespace voxserve::client
