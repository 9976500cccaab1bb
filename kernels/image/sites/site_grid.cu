#include "kernels/core/row_launch.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/image/sites/site_grid.cuh"
#include "kernels/image/sites/site_grid.h"

namespace voxserve::kernels::cuda {
namespace {

// Writes each site's row to site_of at the site's cell, one site per thread. All of site_of must be -1 before.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) NumberCellsKernel(const NumberCellsParams params) {
  const int64_t site = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (site >= NumRows(params.num_sites, params.device_num_sites)) return;
  const int64_t cell = CellOf<kDimension>(params.grid, params.keys[site]);
  if (cell != kNoCell) params.site_of[cell] = static_cast<int32_t>(site);
}

// Writes every value of the grid, kCount neighbouring values per thread. kIsFolded: a row of the output holds several
// neighbouring cells (params.depth). Otherwise it holds one.
template <bool kIsFolded, typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    FillCellsKernel(const RowsOf<T, Out, kCount> rows, const SitesToCellsParams params, const int32_t* site_of) {
  rows.ForEach([&](int64_t row, int32_t column) {
    float values[kCount] = {};
    if constexpr (kIsFolded) {
      const auto* const in = static_cast<const T*>(params.in.data);
      const int32_t* const sites = site_of + row * params.depth;
      int32_t channel = column / params.depth, cell = column - channel * params.depth;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int32_t site = sites[cell];
        if (site >= 0) values[i] = ToFloat(in[site * params.in.pitch + channel]);
        if (++cell == params.depth) {
          cell = 0;
          ++channel;
        }
      }
    } else {
      const int32_t site = site_of[row];
      if (site >= 0) rows.Load(params.in, site, column, values);
    }
    rows.Store(values, params.out, row, column);
  });
}

template <int kDimension, typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ReadCellsKernel(const RowsOf<T, Out, kCount> rows, const CellsToSitesParams params) {
  rows.ForEach([&](int64_t site, int32_t channel) {
    const int64_t cell = CellOf<kDimension>(params.grid, params.keys[site]);
    float values[kCount] = {};
    if (cell != kNoCell) rows.Load(params.in, cell, channel, values);
    rows.Store(values, params.out, site, channel);
  });
}

}  // namespace

cudaError_t NumberCells(const NumberCellsParams& params, cudaStream_t stream) {
  if (params.num_cells() == 0) return cudaSuccess;
  const NvtxRange range("NumberCells");
  const size_t bytes = static_cast<size_t>(params.num_cells()) * sizeof(int32_t);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.site_of, 0xFF, bytes, stream));
  if (params.num_sites == 0) return cudaSuccess;
  return VisitDimension(params.grid.dimension, [&](auto dimension) {
    NumberCellsKernel<dimension()><<<NumBlocks(params.num_sites), kBlockThreads, 0, stream>>>(params);
    return LaunchStatus(stream);
  });
}

size_t SitesToCellsWorkspaceBytes(const SiteGrid& grid, int64_t num_samples) {
  return static_cast<size_t>(grid.num_cells() * num_samples) * sizeof(int32_t);
}

cudaError_t SitesToCells(const SitesToCellsParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  const NvtxRange range("SitesToCells");
  auto* const site_of = static_cast<int32_t*>(params.workspace);
  VOXSERVE_RETURN_IF_CUDA(NumberCells({.grid = params.grid,
                                       .num_samples = params.num_samples,
                                       .keys = params.keys,
                                       .num_sites = params.in.capacity,
                                       .device_num_sites = params.in.num_rows,
                                       .site_of = site_of},
                                      stream));
  // If a row holds several cells, a thread loads one value at a time. So the input's alignment does not limit kCount.
  const bool is_folded = params.depth > 1;
  const ConstRows in = is_folded ? ConstRows{.dtype = params.in.dtype} : params.in;
  return LaunchRows("FillCells", in, params.out, CommonAlignment(),
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      const auto kernel =
                          is_folded ? FillCellsKernel<true, T, Out, kCount> : FillCellsKernel<false, T, Out, kCount>;
                      kernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params, site_of);
                      return LaunchStatus(stream);
                    });
}

cudaError_t CellsToSites(const CellsToSitesParams& params, cudaStream_t stream) {
  return LaunchRows("CellsToSites", params.in, params.out, CommonAlignment(), [&](const auto& rows) {
    return VisitDimension(params.grid.dimension, [&](auto dimension) {
      ReadCellsKernel<dimension()><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
      return LaunchStatus(stream);
    });
  });
}

}  // namespace voxserve::kernels::cuda
