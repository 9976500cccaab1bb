#include "kernels/coordinates/morton_key.h"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/image/site_grid.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr int64_t kNoCell = -1;

// Among all samples' cells.
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

// A thread has one site. site_of: [cells] -1 before.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    NumberCellsKernel(const SiteGrid grid, const uint64_t* keys, int64_t num_sites, int32_t* site_of) {
  const int64_t site = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (site >= num_sites) return;
  const int64_t cell = CellOf<kDimension>(grid, keys[site]);
  if (cell != kNoCell) site_of[cell] = static_cast<int32_t>(site);
}

// A thread has kCount columns of a row of cells. kIsFolded: a row is several cells.
template <typename T, typename Out, int kCount, bool kIsFolded>
__global__ void __launch_bounds__(kBlockThreads)
    FillCellsKernel(const RowChunks rows, const SitesToCellsParams params, const int32_t* site_of) {
  const auto* const in = static_cast<const T*>(params.in);
  auto* const out = static_cast<Out*>(params.out);
  rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t column = chunk * kCount;
    Pack<Out, kCount> result;
    if constexpr (kIsFolded) {
      const int32_t* const sites = site_of + row * params.depth;
      int32_t channel = column / params.depth, cell = column - channel * params.depth;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int32_t site = sites[cell];
        result.values[i] = FromFloat<Out>(site < 0 ? 0.0f : ToFloat(in[site * params.in_pitch + channel]));
        if (++cell == params.depth) {
          cell = 0;
          ++channel;
        }
      }
    } else {
      const int32_t site = site_of[row];
      Pack<T, kCount> read = {};
      if (site >= 0) read = LoadPack<kCount>(in + site * params.in_pitch + column);
#pragma unroll
      for (int i = 0; i < kCount; ++i) result.values[i] = FromFloat<Out>(site < 0 ? 0.0f : ToFloat(read.values[i]));
    }
    *reinterpret_cast<Pack<Out, kCount>*>(out + row * params.out_pitch + column) = result;
  });
}

// A thread has kCount channels of a site.
template <int kDimension, typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ReadCellsKernel(const RowChunks rows, const CellsToSitesParams params) {
  const auto* const in = static_cast<const T*>(params.in);
  auto* const out = static_cast<Out*>(params.out);
  rows.ForEach([&](int64_t site, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    const int64_t cell = CellOf<kDimension>(params.grid, params.keys[site]);
    Pack<T, kCount> read = {};
    if (cell != kNoCell) read = LoadPack<kCount>(in + cell * params.in_pitch + channel);
    Pack<Out, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      result.values[i] = FromFloat<Out>(cell == kNoCell ? 0.0f : ToFloat(read.values[i]));
    }
    *reinterpret_cast<Pack<Out, kCount>*>(out + site * params.out_pitch + channel) = result;
  });
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchFillCells(const SitesToCellsParams& params, int64_t num_rows, cudaStream_t stream) {
  const auto* const site_of = static_cast<const int32_t*>(params.workspace);
  const RowChunks rows(num_rows, int64_t{params.channels} * params.depth / kCount);
  if (params.depth > 1) {
    FillCellsKernel<T, Out, kCount, true><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params, site_of);
  } else {
    FillCellsKernel<T, Out, kCount, false><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params, site_of);
  }
  return LaunchStatus(stream);
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchReadCells(const CellsToSitesParams& params, cudaStream_t stream) {
  const RowChunks rows(params.num_sites, params.channels / kCount);
  return VisitDimension(params.grid.dimension, [&](auto dimension) {
    ReadCellsKernel<dimension(), T, Out, kCount><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace

size_t SitesToCellsWorkspaceBytes(const SiteGrid& grid, int64_t num_samples) {
  return static_cast<size_t>(grid.num_cells() * num_samples) * sizeof(int32_t);
}

cudaError_t SitesToCells(const SitesToCellsParams& params, cudaStream_t stream) {
  const int64_t num_rows = params.num_samples * (params.grid.num_cells() / params.depth);
  if (num_rows == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("SitesToCells");
  VOXSERVE_RETURN_IF_CUDA(
      cudaMemsetAsync(params.workspace, 0xFF, SitesToCellsWorkspaceBytes(params.grid, params.num_samples), stream));
  if (params.num_sites > 0) {
    VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.grid.dimension, [&](auto dimension) {
      NumberCellsKernel<dimension()><<<NumBlocks(params.num_sites), kBlockThreads, 0, stream>>>(
          params.grid, params.keys, params.num_sites, static_cast<int32_t*>(params.workspace));
      return LaunchStatus(stream);
    }));
  }
  // Of what a thread stores, and where a row is one cell, of what it loads.
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(int64_t{params.channels} * params.depth * value_bytes)
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  if (params.depth == 1) alignment.Add(params.in).Add(params.in_pitch * value_bytes);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) {
      return LaunchFillCells<T, Out, kVectorBytes / sizeof(T)>(params, num_rows, stream);
    }
    return LaunchFillCells<T, Out, 1>(params, num_rows, stream);
  });
}

cudaError_t CellsToSites(const CellsToSitesParams& params, cudaStream_t stream) {
  if (params.num_sites == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("CellsToSites");
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchReadCells<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchReadCells<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
