#pragma once

// CheckCapacities checks on the GPU that the levels of a batch fit the memory that was reserved for them. A level is
// the list of the sites of all samples at one place of the network. The host reserves memory before the GPU has counted
// the sites.
//
// If every level fits, the kernel copies the numbers of sites to `held`. If one level does not fit, all numbers in
// `held` become 0 and no point has a voxel. The kernels that follow read their numbers of rows from `held`, so they
// then have no work and write nothing outside their memory. The host reads the true numbers with the results, and runs
// the batch again.
//
// A network that makes more levels later calls it again when these are counted. Until then they have 0 sites and a
// capacity of 0.

#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int32_t kMostHeldLevels = 64;

struct CheckCapacitiesParams {
  int32_t num_levels = 0;                    // 1 to kMostHeldLevels
  const int64_t* num_voxels = nullptr;       // [1] number of sites of level 0, the voxels
  const int64_t* num_sites = nullptr;        // [num_levels] numbers of sites of the other levels; entry 0 is not read
  int64_t capacities[kMostHeldLevels] = {};  // [num_levels] sites that each level has memory for
  // [kMaxDimension] VoxelizeParams::max_coordinate. If it does not fit the bits of an axis (FitsAxisBits), the voxels
  // are wrong, and the batch counts as one that does not fit. Null, or 0 bits of an axis: it is not checked.
  const int64_t* max_coordinate = nullptr;
  Axes axis_bits = {0, 0, 0, 0};
  int64_t num_points = 0;
  int32_t* point_to_voxel = nullptr;  // [num_points] of Voxelize; set to -1 (no voxel) if a level does not fit
  int64_t* held = nullptr;            // output: [num_levels]
};
static_assert(std::is_trivially_copyable_v<CheckCapacitiesParams>);

namespace cuda {

// Returns cudaErrorInvalidValue if num_levels is out of range.
cudaError_t CheckCapacities(const CheckCapacitiesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
