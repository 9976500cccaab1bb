#include <algorithm>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/chunks.h"
#include "kernels/core/scratch.h"
#include "kernels/points/point_groups.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kPointGroupsBlockPoints = 8192;

// Returns the row of a voxel's site, or -1 if the level has no such site or voxel < 0.
int32_t SiteOf(const PointGroupsParams& params, const CoordinateTable& table, const CoordinateKey& layout,
               int32_t voxel) {
  if (voxel < 0) return -1;
  const uint64_t key = params.voxel_keys[voxel];
  Axes coordinate = {0, 0, 0, 0};
  for (int axis = 0; axis < params.dimension; ++axis) {
    const int64_t site = SiteOnAxis(params.ratio, axis, layout.Coordinate(key, axis));
    if (site < layout.min_coordinate() || site > layout.max_coordinate()) return -1;
    coordinate[axis] = static_cast<int32_t>(site);
  }
  return table.Find(layout.Pack(layout.Sample(key), coordinate));
}

}  // namespace

void PointGroups(const PointGroupsParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  const CoordinateKey layout(params.dimension);
  CoordinateTable table(memory);
  table.Build({.dimension = params.dimension, .keys = params.keys, .num_keys = params.num_sites}, pool);
  ScratchVector<int32_t> site_of(static_cast<size_t>(params.num_points), memory);
  pool.ParallelFor(params.num_points, kPointGroupsBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t point = begin; point < end; ++point) {
      const auto voxel = params.point_to_voxel == nullptr ? static_cast<int32_t>(point) : params.point_to_voxel[point];
      site_of[static_cast<size_t>(point)] = SiteOf(params, table, layout, voxel);
    }
  });
  ScratchVector<int64_t> next(static_cast<size_t>(params.num_sites), 0, memory);
  for (const int32_t site : site_of) {
    if (site >= 0) ++next[static_cast<size_t>(site)];
  }
  const int64_t num_grouped = ExclusivePrefixSum(next);
  std::copy(next.begin(), next.end(), params.site_begin);
  params.site_begin[params.num_sites] = num_grouped;
  for (size_t point = 0; point < site_of.size(); ++point) {
    const int32_t site = site_of[point];
    if (site >= 0) params.sorted_points[next[static_cast<size_t>(site)]++] = static_cast<int32_t>(point);
  }
}

}  // namespace voxserve::kernels::cpu
