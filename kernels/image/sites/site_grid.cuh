#pragma once

// CellOf finds the cell of a site (kernels/image/sites/site_grid.h). Only .cu files include this header.

#include <cstdint>

#include "kernels/coordinates/morton_key.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kNoCell = -1;

// Returns the index of the site's cell among the cells of all samples, or kNoCell if the site is outside the grid.
template <int kDimension>
__device__ int64_t CellOf(const SiteGrid& grid, uint64_t key) {
  using Key = MortonKey<kDimension>;
  int64_t cell = Key::Sample(key) * grid.num_cells();
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    const int32_t coordinate = Key::Coordinate(key, axis);
    if (coordinate < 0 || coordinate >= grid.size[axis]) return kNoCell;
    cell += coordinate * grid.stride[axis];
  }
  return cell;
}

}  // namespace voxserve::kernels::cuda
