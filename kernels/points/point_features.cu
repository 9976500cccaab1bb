#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/points/point_features.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread copies one value, since rows have only a few floats.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    PointFeaturesKernel(const RowChunks rows, const __grid_constant__ PointFeaturesParams params) {
  rows.ForEach([&](int64_t point, int32_t channel) {
    const bool has_voxel = params.point_to_voxel[point] >= 0;
    const float value = has_voxel ? FloatsOf(params.features, point)[channel] : 0.0F;
    static_cast<T*>(params.out.data)[point * params.out.pitch + channel] = FromFloat<T>(value);
  });
}

}  // namespace

cudaError_t PointFeatures(const PointFeaturesParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  const NvtxRange range("PointFeatures");
  return VisitFeatureType(params.out.dtype, [&](auto zero) {
    const RowChunks rows(params.out.capacity, params.out.channels, params.out.num_rows);
    PointFeaturesKernel<decltype(zero)><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
