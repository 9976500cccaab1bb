#pragma once

// The fates of a request's points, those of every sweep where several were run. All but `not_finite` and `voxels` add
// up to the points.

#include <cstdint>

namespace voxserve {

struct PointCounts {
  int64_t used = 0;
  int64_t invalid = 0;       // NaN or infinite
  int64_t out_of_range = 0;  // finite, outside the model's range or the key's limits
  int64_t dropped = 0;       // lost to the voxel limit
  int64_t unsampled = 0;     // valid, not in the sample that the network was to see
  int64_t not_finite = 0;    // of those used, and answered: the network's logits are NaN or infinite
  int64_t voxels = 0;        // occupied voxels
};

}  // namespace voxserve
