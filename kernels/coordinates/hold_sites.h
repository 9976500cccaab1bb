#pragma once

// Checks that the levels of a batch fit the memory that was reserved before their numbers of sites were known.
//
// If every level fits, the kernel passes the numbers on. If one does not, all numbers become 0 and no point has a
// voxel. The following kernels then have no work and write nothing outside their memory. The host learns the numbers
// with the results and runs the batch again.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int32_t kMostHeldLevels = 64;

struct HoldSitesParams {
  int32_t num_levels = 0;               // 1 to kMostHeldLevels
  const int64_t* num_voxels = nullptr;  // [1] for level 0
  const int64_t* num_sites = nullptr;   // [num_levels]; entry 0 is not read
  int64_t capacities[kMostHeldLevels] = {};
  const int64_t* max_coordinate =
      nullptr;  // [1] largest coordinate of the voxels, must be below 2^axis_bits; null: any
  int32_t axis_bits = 0;
  int64_t num_points = 0;
  int32_t* point_to_voxel = nullptr;  // [num_points] negative: no voxel (kernels/points/voxelize.h)
  int64_t* held = nullptr;            // [num_levels] output
};
static_assert(std::is_trivially_copyable_v<HoldSitesParams>);

namespace cuda {

// cudaErrorInvalidValue if num_levels is out of range.
cudaError_t HoldSites(const HoldSitesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
