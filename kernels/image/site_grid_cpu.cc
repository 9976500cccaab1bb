#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/image/site_grid.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 2048;
constexpr int64_t kNoCell = -1;

// Among all samples' cells.
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

void SitesToCells(const SitesToCellsParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32 && params.out_dtype == DType::kFloat32);
  auto* const out = static_cast<float*>(params.out);
  const int64_t num_rows = params.num_samples * (params.grid.num_cells() / params.depth);
  pool.ParallelFor(num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::fill_n(out + row * params.out_pitch, int64_t{params.channels} * params.depth, 0.0f);
    }
  });
  const CoordinateKey layout(params.grid.dimension);
  pool.ParallelFor(params.num_sites, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      const int64_t cell = CellOf(params.grid, layout, params.keys[site]);
      if (cell == kNoCell) continue;
      const float* const from = static_cast<const float*>(params.in) + site * params.in_pitch;
      float* const to = out + cell / params.depth * params.out_pitch + cell % params.depth;
      for (int32_t c = 0; c < params.channels; ++c) to[int64_t{c} * params.depth] = from[c];
    }
  });
}

void CellsToSites(const CellsToSitesParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32 && params.out_dtype == DType::kFloat32);
  const CoordinateKey layout(params.grid.dimension);
  pool.ParallelFor(params.num_sites, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t site = begin; site < end; ++site) {
      const int64_t cell = CellOf(params.grid, layout, params.keys[site]);
      float* const to = static_cast<float*>(params.out) + site * params.out_pitch;
      if (cell == kNoCell) {
        std::fill_n(to, params.channels, 0.0f);
      } else {
        std::copy_n(static_cast<const float*>(params.in) + cell * params.in_pitch, params.channels, to);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
