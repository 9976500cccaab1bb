#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/points/point_offsets.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread computes one value, since rows have only a few floats.
template <int kDimension, typename T>
__global__ void __launch_bounds__(kBlockThreads)
    PointOffsetsKernel(const RowChunks rows, const __grid_constant__ PointOffsetsParams params) {
  rows.ForEach([&](int64_t point, int32_t axis) {
    const int32_t voxel = params.point_to_voxel[point];
    float value = 0;
    if (voxel >= 0) {
      float from;
      if (params.means.data != nullptr) {
        from = FloatsOf(params.means, voxel)[axis];
      } else {
        const int32_t coordinate = MortonKey<kDimension>::Coordinate(params.voxel_keys[voxel], axis);
        from = static_cast<float>(coordinate) * params.voxel_size[axis] + params.first_center[axis];
      }
      value = FloatsOf(params.axes, point)[axis] - from;
    }
    static_cast<T*>(params.out.data)[point * params.out.pitch + axis] = FromFloat<T>(value);
  });
}

}  // namespace

cudaError_t PointOffsets(const PointOffsetsParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0) return cudaSuccess;
  const NvtxRange range("PointOffsets");
  return VisitFeatureType(params.out.dtype, [&](auto zero) {
    return VisitDimension(params.dimension, [&](auto dimension) {
      const RowChunks rows(params.out.capacity, params.dimension, params.out.num_rows);
      PointOffsetsKernel<dimension(), decltype(zero)><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
      return LaunchStatus(stream);
    });
  });
}

}  // namespace voxserve::kernels::cuda
