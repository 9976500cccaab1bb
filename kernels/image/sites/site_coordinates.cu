#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/image/sites/site_coordinates.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread computes one value, since rows have only a few.
template <int kDimension, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    SiteCoordinatesKernel(const RowChunks rows, const __grid_constant__ SiteCoordinatesParams params) {
  rows.ForEach([&](int64_t site, int32_t axis) {
    const float value = CoordinateColumn(params, axis, MortonKey<kDimension>::Coordinate(params.keys[site], axis));
    static_cast<T*>(params.out.data)[site * params.out.pitch + axis] = FromFloat<T>(value);
  });
}

}  // namespace

cudaError_t SiteCoordinates(const SiteCoordinatesParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0) return cudaSuccess;
  const NvtxRange range("SiteCoordinates");
  return VisitFeatureType(params.out.dtype, [&](auto zero) {
    return VisitDimension(params.out.channels, [&](auto dimension) {
      const RowChunks rows(params.out.capacity, params.out.channels, params.out.num_rows);
      SiteCoordinatesKernel<dimension(), decltype(zero)><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
      return LaunchStatus(stream);
    });
  });
}

}  // namespace voxserve::kernels::cuda
