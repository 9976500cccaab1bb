#pragma once

// These functions copy the features of a level's sites to a dense grid, and back. A level is the list of the sites of
// all samples at one unit. The grid has a cell for every position of the level's spatial shape; cells without a site
// are 0. The grids of the samples follow each other. A sample's result depends only on its own sites, bit for bit.
//
// - GPU: SitesToCells first finds the row of each cell's site (NumberCells). Then it writes every value of the grid
//   once, including zeros; neighbouring threads write neighbouring values.
// - CPU: SitesToCells clears the grid, then writes the sites' rows to it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// SiteGrid says which cell of its sample's grid a site has: the cell number is the sum over the axes of
// coordinate * stride.
struct SiteGrid {
  int32_t dimension = 3;                                     // 1 to kMaxDimension
  Axes size = {1, 1, 1, 1};                                  // a site outside [0, size) has no cell
  std::array<int64_t, kMaxDimension> stride = {0, 0, 0, 0};  // in cells

  constexpr int64_t num_cells() const { return int64_t{1} * size[0] * size[1] * size[2] * size[3]; }

  // The last axis varies fastest. Sizes of axes beyond the dimension must be 1.
  static constexpr SiteGrid RowMajor(int32_t dimension, const Axes& size) {
    SiteGrid grid{.dimension = dimension, .size = size};
    int64_t stride = 1;
    for (int axis = dimension - 1; axis >= 0; --axis) {
      grid.stride[axis] = stride;
      stride *= size[axis];
    }
    return grid;
  }
  // Returns the grid of an image seen from above, for 3 axes (x, y, z) or 2 (x, y). Axis 1 gives the rows of the image,
  // axis 0 its columns. The cells of one pixel (one x and y) are neighbours, from the lowest z to the highest.
  static constexpr SiteGrid FromAbove(const Axes& size, int32_t dimension = 3) {
    return {.dimension = dimension, .size = size, .stride = {size[2], int64_t{size[0]} * size[2], 1, 0}};
  }
};

// NumberCells finds the row of each cell's site.
struct NumberCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  // [num_sites] CoordinateKeys on the CPU, MortonKeys on a GPU; each key once, in any order.
  const uint64_t* keys = nullptr;
  int64_t num_sites = 0;                      // below 2^31
  const int64_t* device_num_sites = nullptr;  // [1] on a GPU: the number of sites; null: num_sites
  int32_t* site_of = nullptr;                 // output: [num_samples * cells] the row of the cell's site; -1: none

  constexpr int64_t num_cells() const { return grid.num_cells() * num_samples; }
};
static_assert(std::is_trivially_copyable_v<NumberCellsParams>);

// SitesToCells copies the rows of sites to the cells of the grid.
struct SitesToCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  const uint64_t* keys = nullptr;  // the sites' keys, as in NumberCellsParams
  int32_t depth = 1;               // number of neighbouring cells in one row of `out`; divides grid.num_cells()
  ConstRows in;                    // one row per site; the CPU only supports float32
  // [num_samples * cells / depth, in.channels * depth] in in's type or float32. Column c * depth + i is channel c of
  // the row's cell i. Must not overlap `in`.
  Rows out;
  void* workspace = nullptr;  // on a GPU: SitesToCellsWorkspaceBytes, 256-byte aligned; overwritten
};
static_assert(std::is_trivially_copyable_v<SitesToCellsParams>);

// CellsToSites copies to every site the row of its cell, or 0 if the site is outside the grid.
struct CellsToSitesParams {
  SiteGrid grid;
  const uint64_t* keys = nullptr;  // the sites' keys, as in NumberCellsParams
  ConstRows in;                    // one row per cell of every sample; the CPU only supports float32
  Rows out;                        // one row per site; in's channels, in's type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<CellsToSitesParams>);

namespace cpu {

void NumberCells(const NumberCellsParams& params, ThreadPool& pool);
void SitesToCells(const SitesToCellsParams& params, ThreadPool& pool);
void CellsToSites(const CellsToSitesParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t NumberCells(const NumberCellsParams& params, cudaStream_t stream);
// Returns the bytes of SitesToCellsParams::workspace.
size_t SitesToCellsWorkspaceBytes(const SiteGrid& grid, int64_t num_samples);
// num_samples * grid.num_cells() must be at most 2^31 - 1, the limit of rows.
cudaError_t SitesToCells(const SitesToCellsParams& params, cudaStream_t stream);
cudaError_t CellsToSites(const CellsToSitesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
