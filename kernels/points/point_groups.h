#pragma once

// PointGroups lists the points of each site of a level, in input order. A level is the list of the sites of a batch at
// one unit. A point belongs to the site floor(coordinate of the point's voxel * ratio.multiplier / ratio.divisor).
// Points without a voxel, and points whose site the level does not have, belong to no site.
//
// The result is deterministic. On CUDA, `keys` may be in any order; on the CPU they must ascend.

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>

#include "kernels/coordinates/site_position.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PointGroupsParams {
  int32_t dimension = 3;
  int64_t num_points = 0;                   // below 2^31
  const int32_t* point_to_voxel = nullptr;  // [num_points]; negative: no voxel. Null: the voxel of point i is i
  SiteRatio ratio;                          // from voxels to the level's sites

  // Both are CoordinateKeys on the CPU and MortonKeys on CUDA.
  const uint64_t* voxel_keys = nullptr;  // keys of the points' voxels
  const uint64_t* keys = nullptr;        // [num_sites] keys of the level
  int64_t num_sites = 0;                 // below 2^30
  // CUDA only: [1] the numbers of points and of sites that exist, in device memory. Null: num_points, num_sites. Points
  // after the existing ones belong to no site.
  const int64_t* device_num_points = nullptr;
  const int64_t* device_num_sites = nullptr;

  // Output: [num_points] points grouped by site, in input order within a site. Entries from site_begin[num_sites] on
  // are undefined.
  int32_t* sorted_points = nullptr;
  int64_t* site_begin = nullptr;  // output: [num_sites + 1] first entry of each site in sorted_points

  void* workspace = nullptr;  // CUDA only: PointGroupsWorkspaceBytes(*this), 256-byte aligned, any contents
};
static_assert(std::is_trivially_copyable_v<PointGroupsParams>);

namespace cpu {

// Temporary arrays are allocated from `memory`. Throws std::bad_alloc if it is used up.
void PointGroups(const PointGroupsParams& params, ThreadPool& pool,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Needs a device above 16 million points (SortPairsScratchBytes). Reads only
// num_points and num_sites.
size_t PointGroupsWorkspaceBytes(const PointGroupsParams& params);
cudaError_t PointGroups(const PointGroupsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
