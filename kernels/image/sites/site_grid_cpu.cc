#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 2048;
constexpr int64_t kNoCell = -1;

// Returns the index of the site's cell among the cells of all samples, or kNoCell if the site is outside the grid.
int64_t CellOf(const SiteGrid& grid, const CoordinateKey& layout, uint64_t key) {
  int64_t cell = layout.Sample(key) * grid.num_cells();
  for (int axis = 0; axis < grid.dimension; ++axis) {
    const int32_t coordinate = layout.Coordinate(key, axis);
    if (coordinate < 0 || coordinate >= grid.size[axis]) return kNoCell;
    cell += coordinate * grid.stride[axis];
  }
  return cell;
}

}  // namespace

void NumberCells(const NumberCellsParams& params, ThreadPool& pool) {
  std::fill_n(params.site_of, params.num_cells(), -1);
  const CoordinateKey layout(params.grid.dimension);
  pool.ParallelFor(params.num_sites, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      const int64_t cell = CellOf(params.grid, layout, params.keys[site]);
      if (cell != kNoCell) params.site_of[cell] = static_cast<int32_t>(site);
    }
  });
}

void SitesToCells(const SitesToCellsParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  pool.ParallelFor(params.out.capacity, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::fill_n(params.out.floats(row), params.out.channels, 0.0f);
  });
  const CoordinateKey layout(params.grid.dimension);
  pool.ParallelFor(params.in.capacity, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      const int64_t cell = CellOf(params.grid, layout, params.keys[site]);
      if (cell == kNoCell) continue;
      const float* const from = params.in.floats(site);
      float* const to = params.out.floats(cell / params.depth) + cell % params.depth;
      for (int32_t c = 0; c < params.in.channels; ++c) to[int64_t{c} * params.depth] = from[c];
    }
  });
}

void CellsToSites(const CellsToSitesParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const CoordinateKey layout(params.grid.dimension);
  pool.ParallelFor(params.out.capacity, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      const int64_t cell = CellOf(params.grid, layout, params.keys[site]);
      float* const to = params.out.floats(site);
      if (cell == kNoCell) {
        std::fill_n(to, params.out.channels, 0.0f);
      } else {
        std::copy_n(params.in.floats(cell), params.out.channels, to);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
