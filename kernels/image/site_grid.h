#pragma once

// Copies sites to a dense grid with a cell for every position of their level's spatial shape, and back. Cells without a
// site are 0. The samples' grids follow each other. A sample's result depends only on its own sites, bit for bit.
//
// - GPU: each cell first learns its site's row. Then every value of the grid is written once, including zeros,
//   neighbouring values by neighbouring threads.
// - CPU: the grid is cleared first, then the sites' rows are written to it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Says where a site's cell is within its sample's grid: at the sum over the axes of coordinate * stride.
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
  // For 3 axes: axis 1 gives the rows of an image, axis 0 its columns, and cells above each other are neighbours.
  static constexpr SiteGrid FromAbove(const Axes& size) {
    return {.dimension = 3, .size = size, .stride = {size[2], int64_t{size[0]} * size[2], 1, 0}};
  }
};

// Finds the site of each cell.
struct NumberCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  // [sites] CoordinateKeys on the CPU, MortonKeys on a GPU; each key once, in any order.
  const uint64_t* keys = nullptr;
  int64_t num_sites = 0;                      // below 2^31
  const int64_t* device_num_sites = nullptr;  // [1] on a GPU: the number of sites; null: num_sites
  int32_t* site_of = nullptr;                 // output: [num_samples * cells] the row of the cell's site; -1: none

  constexpr int64_t num_cells() const { return grid.num_cells() * num_samples; }
};
static_assert(std::is_trivially_copyable_v<NumberCellsParams>);

struct SitesToCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  const uint64_t* keys = nullptr;  // as above
  int32_t depth = 1;               // neighbouring cells in one row of `out`; divides the number of cells
  ConstRows in;                    // one row per site; float32 only on the CPU
  // [num_samples * cells / depth, in.channels * depth] in in's type or float32. Column c * depth + i is channel c of
  // the row's cell i. Must not overlap `in`.
  Rows out;
  void* workspace = nullptr;  // on a GPU: SitesToCellsWorkspaceBytes, 256-byte aligned; overwritten
};
static_assert(std::is_trivially_copyable_v<SitesToCellsParams>);

// Copies to every site the row of its cell, or 0 if it has no cell.
struct CellsToSitesParams {
  SiteGrid grid;
  const uint64_t* keys = nullptr;  // as above
  ConstRows in;                    // one row per cell of every sample; float32 only on the CPU
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
size_t SitesToCellsWorkspaceBytes(const SiteGrid& grid, int64_t num_samples);
// There may be at most 2^31 - 1 samples and cells, since rows have that limit.
cudaError_t SitesToCells(const SitesToCellsParams& params, cudaStream_t stream);
cudaError_t CellsToSites(const CellsToSitesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
