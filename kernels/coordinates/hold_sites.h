#pragma once

// Holds the levels of a batch to the room that was made for them before anybody knew their numbers of sites.
//
// Where every level has room, its number is passed on. Where one has not, all numbers become 0 and no point has a
// voxel: kernels that follow find nothing to do, none of them leaves its memory, and the host, which learns the numbers
// with the results, runs the batch again.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

inline constexpr int32_t kMostHeldLevels = 64;

struct HoldSitesParams {
  int32_t num_levels = 0;               // 1 to kMostHeldLevels
  const int64_t* num_voxels = nullptr;  // [1] of level 0
  const int64_t* num_sites = nullptr;   // [num_levels]; that of level 0 is not read
  int64_t capacities[kMostHeldLevels] = {};
  const int64_t* max_coordinate = nullptr;  // [1] of the voxels, which 2^axis_bits is to be above; null: it may be any
  int32_t axis_bits = 0;
  int64_t num_points = 0;
  int32_t* point_to_voxel = nullptr;  // [num_points] negative: none (kernels/points/voxelize.h)
  int64_t* held = nullptr;            // [num_levels] output
};
static_assert(std::is_trivially_copyable_v<HoldSitesParams>);

namespace cuda {

// cudaErrorInvalidValue for a number of levels that it does not take.
cudaError_t HoldSites(const HoldSitesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
