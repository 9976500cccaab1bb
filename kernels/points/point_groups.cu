#include <bit>

#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/points/point_groups.h"

// PointGroups (point_groups.h) finds every point's site, sorts the points stably by site, and finds where the points of
// each site begin.

namespace voxserve::kernels::cuda {
namespace {

CoordinateTableBuildParams TableOf(const PointGroupsParams& params) {
  return {.keys = params.keys, .capacity = params.num_sites, .num_keys = params.device_num_sites};
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// sites: for each point the row of its site, or num_sites if it has none.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    FindSitesKernel(const __grid_constant__ PointGroupsParams params, const CoordinateTable level, uint32_t* sites,
                    int32_t* points) {
  using Key = MortonKey<kDimension>;
  constexpr CoordinateKey kLimits(kDimension);
  const int64_t point = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (point >= params.num_points) return;
  int32_t found[1] = {-1};
  int32_t voxel = -1;
  if (point < NumRows(params.num_points, params.device_num_points)) {
    voxel = params.point_to_voxel == nullptr ? static_cast<int32_t>(point) : params.point_to_voxel[point];
  }
  if (voxel >= 0) {
    const uint64_t key = params.voxel_keys[voxel];
    bool is_within = true;
    Axes coordinate = {0, 0, 0, 0};
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      const int64_t site = SiteOnAxis(params.ratio, axis, Key::Coordinate(key, axis));
      is_within = is_within && site >= kLimits.min_coordinate() && site <= kLimits.max_coordinate();
      coordinate[axis] = static_cast<int32_t>(site);
    }
    const uint64_t keys[1] = {is_within ? Key::Pack(Key::Sample(key), coordinate) : kNoKey};
    HashTable(level).Find(keys, 1, found);
  }
  sites[point] = static_cast<uint32_t>(found[0] < 0 ? params.num_sites : found[0]);
  points[point] = static_cast<int32_t>(point);
}

// A thread computes one of the num_sites + 1 entries of site_begin.
__global__ void __launch_bounds__(kBlockThreads)
    FindBeginsKernel(const uint32_t* sites, int64_t num_points, int64_t num_sites, int64_t* site_begin) {
  const int64_t site = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (site > num_sites) return;
  // Finds the first point of this site or of a later one.
  site_begin[site] = PartitionPoint(num_points, [&](int64_t point) { return sites[point] < site; });
}

// ---- Launchers ---------------------------------------------------------------------------------------------------

struct Workspace {
  explicit Workspace(const PointGroupsParams& params) {
    WorkspaceCutter cutter(params.workspace);
    sites = cutter.Take<uint32_t>(params.num_points);
    other_sites = cutter.Take<uint32_t>(params.num_points);
    other_points = cutter.Take<int32_t>(params.num_points);
    table = cutter.Take<char>(static_cast<int64_t>(CoordinateTableBytes(TableOf(params))));
    sort_scratch = cutter.Take<char>(static_cast<int64_t>(SortPairsScratchBytes<uint32_t>(params.num_points)));
    bytes = cutter.bytes();
  }

  uint32_t* sites;        // of the points
  uint32_t* other_sites;  // the sort moves pairs of a site and a point between two pairs of buffers
  int32_t* other_points;
  char* table;
  char* sort_scratch;
  size_t bytes;
};

}  // namespace

size_t PointGroupsWorkspaceBytes(const PointGroupsParams& params) {
  PointGroupsParams measured = params;
  measured.workspace = nullptr;
  return Workspace(measured).bytes;
}

cudaError_t PointGroups(const PointGroupsParams& params, cudaStream_t stream) {
  const NvtxRange range("PointGroups");
  if (params.num_points > 0) {
    Workspace workspace(params);
    CoordinateTableBuildParams build = TableOf(params);
    build.memory = workspace.table;
    CoordinateTable table;
    VOXSERVE_RETURN_IF_CUDA(BuildCoordinateTable(build, &table, stream));
    // A sort of up to 18 bits, so of up to 262,143 sites, has two passes and ends where it began.
    PairBuffers<uint32_t> pairs{.keys = {workspace.sites, workspace.other_sites},
                                .values = {params.sorted_points, workspace.other_points}};
    VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.dimension, [&](auto dimension) {
      FindSitesKernel<dimension()><<<NumBlocks(params.num_points), kBlockThreads, 0, stream>>>(
          params, table, pairs.current_keys(), pairs.current_values());
      return LaunchStatus(stream);
    }));
    const int num_bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(params.num_sites) | 1));
    VOXSERVE_RETURN_IF_CUDA(SortPairs(pairs, params.num_points, num_bits, workspace.sort_scratch, stream));
    if (pairs.current_values() != params.sorted_points) {
      VOXSERVE_RETURN_IF_CUDA(cudaMemcpyAsync(params.sorted_points, pairs.current_values(),
                                              static_cast<size_t>(params.num_points) * sizeof(int32_t),
                                              cudaMemcpyDeviceToDevice, stream));
    }
    FindBeginsKernel<<<NumBlocks(params.num_sites + 1), kBlockThreads, 0, stream>>>(
        pairs.current_keys(), params.num_points, params.num_sites, params.site_begin);
    return LaunchStatus(stream);
  }
  return cudaMemsetAsync(params.site_begin, 0, static_cast<size_t>(params.num_sites + 1) * sizeof(int64_t), stream);
}

}  // namespace voxserve::kernels::cuda
