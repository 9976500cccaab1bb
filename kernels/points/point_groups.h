#pragma once

// PointGroups lists the points of each site of a level, in input order. A point belongs to the site
// floor(its voxel's coordinate / the level's unit). Points without a voxel, or with a site that does not exist, belong
// to no site.
//
// Deterministic. On CUDA rows and keys may stand in any order; on the CPU keys ascend.

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
  const int32_t* point_to_voxel = nullptr;  // [num_points]; negative: no voxel. null: point i is voxel i
  SiteRatio ratio;                          // from voxels to the level's sites

  // CoordinateKeys on the CPU, MortonKeys on CUDA.
  const uint64_t* voxel_keys = nullptr;
  const uint64_t* keys = nullptr;  // [num_sites] of the level
  int64_t num_sites = 0;           // below 2^30
  // CUDA: if not null, [1] the numbers of points and of sites. Points behind them belong to no site.
  const int64_t* device_num_points = nullptr;
  const int64_t* device_num_sites = nullptr;

  int32_t* sorted_points = nullptr;  // output: [at most num_points] points grouped by site, in input order within one
  int64_t* site_begin = nullptr;     // output: [num_sites + 1] first entry of each site in sorted_points

  void* workspace = nullptr;  // CUDA alone: PointGroupsWorkspaceBytes(*this), 256-byte aligned, contents free
};
static_assert(std::is_trivially_copyable_v<PointGroupsParams>);

namespace cpu {

// memory: for temporary arrays.
void PointGroups(const PointGroupsParams& params, ThreadPool& pool,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Calls CUB, so it needs a device. Reads only num_points and num_sites.
size_t PointGroupsWorkspaceBytes(const PointGroupsParams& params);
cudaError_t PointGroups(const PointGroupsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
