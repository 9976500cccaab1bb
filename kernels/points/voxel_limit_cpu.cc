#include <algorithm>
#include <utility>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/core/scratch.h"
#include "kernels/points/voxel_limit.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int kSpatialAxes = 3;

double SquaredDistance(const VoxelizeParams& voxels, const CoordinateKey& layout, const Axes& origin, uint64_t key) {
  const double centre = voxels.rounding == VoxelRounding::kFloor ? 0.5 : 0.0;
  double sum = 0.0;
  for (int axis = 0; axis < std::min(voxels.dimension, kSpatialAxes); ++axis) {
    const double cells = double{static_cast<double>(layout.Coordinate(key, axis))} + origin[axis] + centre;
    const double start = voxels.origin == VoxelOrigin::kRange ? voxels.range_min[axis] : 0.0;
    const double metres = cells * voxels.voxel_size[axis] + start;
    sum += metres * metres;
  }
  return sum;
}

// Marks the voxels of [begin, end) of one sample that stay: those with the smallest ranks. rank_of(row): the rank of a
// voxel.
template <typename RankOf>
void MarkFirst(int64_t begin, int64_t end, int64_t max_voxels, RankOf rank_of, ScratchVector<char>& keep) {
  ScratchVector<std::pair<decltype(rank_of(begin)), int64_t>> ranked(keep.get_allocator().memory());
  ranked.reserve(static_cast<size_t>(end - begin));
  for (int64_t row = begin; row < end; ++row) ranked.emplace_back(rank_of(row), row);
  const auto last_kept = ranked.begin() + max_voxels;
  std::nth_element(ranked.begin(), last_kept, ranked.end());
  for (auto it = ranked.begin(); it != last_kept; ++it) keep[static_cast<size_t>(it->second)] = 1;
}

}  // namespace

void LimitVoxels(const VoxelLimitParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  const VoxelizeParams& voxels = params.voxels;
  const int32_t num_samples = voxels.num_samples;
  const int64_t num_voxels = voxels.sample_begin[num_samples];
  std::fill_n(params.num_dropped_voxels, num_samples, 0);
  std::fill_n(params.num_dropped_points, num_samples, 0);

  const CoordinateKey layout(voxels.dimension);
  bool is_over = false;
  for (int32_t sample = 0; sample < num_samples; ++sample) {
    is_over |= voxels.sample_begin[sample + 1] - voxels.sample_begin[sample] > params.max_voxels;
  }
  if (!is_over) return;
  ScratchVector<char> keep(static_cast<size_t>(num_voxels), 0, memory);
  pool.ParallelFor(num_samples, 1, [&](int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      const int64_t begin = voxels.sample_begin[sample];
      const int64_t end = voxels.sample_begin[sample + 1];
      if (end - begin <= params.max_voxels) {
        std::fill(keep.begin() + begin, keep.begin() + end, 1);
      } else if (params.order == VoxelOrder::kNearest) {
        const auto distance_of = [&](int64_t row) {
          return SquaredDistance(voxels, layout, voxels.sample_origin[sample], voxels.keys[row]);
        };
        MarkFirst(begin, end, params.max_voxels, distance_of, keep);
      } else {
        const auto first_point_of = [&](int64_t row) { return voxels.sorted_points[voxels.voxel_begin[row]]; };
        MarkFirst(begin, end, params.max_voxels, first_point_of, keep);
      }
    }
  });

  int64_t num_kept_voxels = 0;
  int64_t num_kept_points = 0;
  int64_t begin = 0;  // the sample's first voxel, before any were dropped
  int64_t points_begin = 0;
  for (int32_t sample = 0; sample < num_samples; ++sample) {
    const int64_t end = voxels.sample_begin[sample + 1];
    for (int64_t voxel = begin; voxel < end; ++voxel) {
      const int64_t points_end = voxels.voxel_begin[voxel + 1];
      const bool is_kept = keep[static_cast<size_t>(voxel)] != 0;
      const auto row = is_kept ? static_cast<int32_t>(num_kept_voxels) : kDroppedPoint;
      if (is_kept) {
        voxels.keys[num_kept_voxels] = voxels.keys[voxel];
        voxels.voxel_begin[num_kept_voxels++] = num_kept_points;
      } else {
        ++params.num_dropped_voxels[sample];
        params.num_dropped_points[sample] += points_end - points_begin;
      }
      for (; points_begin < points_end; ++points_begin) {
        const int32_t point = voxels.sorted_points[points_begin];
        voxels.point_to_voxel[point] = row;
        if (is_kept) voxels.sorted_points[num_kept_points++] = point;
      }
    }
    begin = end;
    voxels.sample_begin[sample + 1] = num_kept_voxels;
  }
  voxels.voxel_begin[num_kept_voxels] = num_kept_points;
}

}  // namespace voxserve::kernels::cpu
