#pragma once

// PointCounts counts what became of the points of a request, over all sweeps that ran. All counts except `not_finite`
// and `voxels` add up to the number of points.

#include <cstdint>

namespace voxserve {

struct PointCounts {
  int64_t used = 0;
  int64_t invalid = 0;       // NaN or infinite
  int64_t out_of_range = 0;  // finite, outside the model's range or the key's limits
  int64_t dropped = 0;       // left out because of the voxel limit
  int64_t unsampled = 0;     // valid, but not in the sample that the network sees
  int64_t not_finite = 0;    // used and answered points whose logits are NaN or infinite
  int64_t voxels = 0;        // occupied voxels
};

}  // namespace voxserve
