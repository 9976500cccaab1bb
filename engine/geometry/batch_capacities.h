#pragma once

// BatchCapacities holds the capacities that a batch on a GPU gets before its sizes are known, so that the host need
// not wait for them. If a batch needs more, all its levels become empty, so that the steps' kernels have no rows to
// compute, and DeviceGeometry::overflowed() is true.

#include <cstdint>
#include <vector>

#include "kernels/coordinates/conv_geometry.h"

namespace voxserve {

struct BatchCapacities {
  std::vector<int64_t> sites;  // sites by level; empty: there are no capacities, and the host waits for the sizes
  // Bits per voxel coordinate on each axis, relative to the sample's minimum (kernels/points/voxelize.h); 0: as many as
  // a key has.
  kernels::Axes axis_bits = {0, 0, 0, 0};
  // The capacities, in points and in bytes, of the arrays of points and of the uploaded clouds, for batches that use
  // the same memory (executor/capacity_cache.h). 0: as much as the batch needs.
  int64_t points = 0;
  int64_t upload_bytes = 0;
};

}  // namespace voxserve
