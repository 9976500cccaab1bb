#pragma once

// Sites to a dense grid, a cell for every position of their level's spatial shape, and back. Cells without a site are
// 0. Grids stand one sample behind the other; a sample's result depends on its own sites alone, bit for bit.
//
// On a GPU cells first learn their site's row, then every value of the grid is written once, zeros and all, neighbours
// by neighbouring threads; on a CPU zeros come first and the sites' rows go over them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Where a site's cell stands among its sample's: the sum over the axes of coordinate * stride.
struct SiteGrid {
  int32_t dimension = 3;                                     // 1 to kMaxDimension
  Axes size = {1, 1, 1, 1};                                  // a site outside of [0, size) has no cell
  std::array<int64_t, kMaxDimension> stride = {0, 0, 0, 0};  // cells

  constexpr int64_t num_cells() const { return int64_t{1} * size[0] * size[1] * size[2] * size[3]; }

  // The last axis fastest. Axes of size beyond the dimension are 1.
  static constexpr SiteGrid RowMajor(int32_t dimension, const Axes& size) {
    SiteGrid grid{.dimension = dimension, .size = size};
    int64_t stride = 1;
    for (int axis = dimension - 1; axis >= 0; --axis) {
      grid.stride[axis] = stride;
      stride *= size[axis];
    }
    return grid;
  }
  // Of 3 axes: rows of an image are axis 1, its columns axis 0, and what stands above each other are neighbours.
  static constexpr SiteGrid FromAbove(const Axes& size) {
    return {.dimension = 3, .size = size, .stride = {size[2], int64_t{size[0]} * size[2], 1, 0}};
  }
};

// Where each cell's site stands.
struct NumberCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  // [sites] CoordinateKeys on the CPU, MortonKeys on a GPU; each once, in any order.
  const uint64_t* keys = nullptr;
  int64_t num_sites = 0;                      // below 2^31
  const int64_t* device_num_sites = nullptr;  // [1] on a GPU: how many of them there are; null: num_sites
  int32_t* site_of = nullptr;                 // output: [num_samples * cells] the row of the cell's site; -1: none

  constexpr int64_t num_cells() const { return grid.num_cells() * num_samples; }
};
static_assert(std::is_trivially_copyable_v<NumberCellsParams>);

struct SitesToCellsParams {
  SiteGrid grid;
  int64_t num_samples = 0;
  const uint64_t* keys = nullptr;  // as above
  int32_t depth = 1;               // so many neighbouring cells are one row of `out`; divides the number of cells
  ConstRows in;                    // a row a site; the CPU has float32 alone
  // [num_samples * cells / depth, in.channels * depth] of in's type or float32, where column c * depth + i is channel c
  // of the row's cell i; must not overlap `in`.
  Rows out;
  void* workspace = nullptr;  // on a GPU: SitesToCellsWorkspaceBytes, 256-byte aligned; overwritten
};
static_assert(std::is_trivially_copyable_v<SitesToCellsParams>);

// Every site gets its cell's row, or 0 where it has no cell.
struct CellsToSitesParams {
  SiteGrid grid;
  const uint64_t* keys = nullptr;  // as above
  ConstRows in;                    // a row a cell of every sample; the CPU has float32 alone
  Rows out;                        // a row a site; in's channels, its type or float32; must not overlap `in`
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
// Samples and cells at most 2^31 - 1 each, as rows are.
cudaError_t SitesToCells(const SitesToCellsParams& params, cudaStream_t stream);
cudaError_t CellsToSites(const CellsToSitesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
