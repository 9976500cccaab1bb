#include <cuda/std/limits>

#include "kernels/core/binary_search.cuh"
#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/image/sites/voxel_positions.h"

namespace voxserve::kernels::cuda {
namespace {

// Blocks per sample that search for its minimum: enough for one large scan.
constexpr unsigned kMinimumBlocks = 64;

// A number that is not NaN, as an integer that is the larger the smaller the number is, and never 0. So minima begin as
// zeros, and maxima of integers, which do not depend on the order, find them.
__device__ uint32_t Descending(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits >> 31 != 0 ? bits : ~bits & 0x7fffffffu;
}
__device__ float FromDescending(uint32_t bits) { return __uint_as_float(bits >> 31 != 0 ? bits : ~bits & 0x7fffffffu); }

// ---- kernels

// Block (x, y) reads every x-th part of the points of sample y. minima: zeros; becomes Descending of the minima.
__global__ void __launch_bounds__(kBlockThreads)
    SampleMinimaKernel(const __grid_constant__ VoxelPositionsParams params, uint32_t* minima) {
  const auto sample = static_cast<int32_t>(blockIdx.y);
  uint32_t most[kMaxDimension] = {};
  const int64_t end = params.point_begin[sample + 1], stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t point = params.point_begin[sample] + int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; point < end;
       point += stride) {
    if (params.point_to_voxel[point] < 0) continue;
    const float* const axes = FloatsOf(params.axes, point);
#pragma unroll
    for (int axis = 0; axis < kMaxDimension; ++axis) {
      if (axis < params.out.channels) most[axis] = max(most[axis], Descending(axes[axis]));
    }
  }
#pragma unroll
  for (int axis = 0; axis < kMaxDimension; ++axis) {
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      most[axis] = max(most[axis], __shfl_xor_sync(~0u, most[axis], distance));
    }
    if (threadIdx.x % kWarpThreads == 0 && most[axis] != 0) {
      atomicMax(minima + sample * kMaxDimension + axis, most[axis]);
    }
  }
}

// A thread computes one value, since rows have only a few.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    VoxelPositionsKernel(const RowChunks rows, const __grid_constant__ VoxelPositionsParams params) {
  rows.ForEach([&](int64_t voxel, int32_t axis) {
    const int32_t* const points = params.sorted_points + params.voxel_begin[voxel];
    float value = FloatsOf(params.axes, points[0])[axis];
    if (params.is_mean) {
      const int64_t count = params.voxel_begin[voxel + 1] - params.voxel_begin[voxel];
      for (int64_t i = 1; i < count; ++i) value += FloatsOf(params.axes, points[i])[axis];
      if (count > 1) value /= static_cast<float>(count);
    }
    if (params.minima != nullptr) {
      const int32_t sample = RunOf(params.point_begin, params.num_samples, points[0]);
      value -= FromDescending(reinterpret_cast<const uint32_t*>(params.minima)[sample * kMaxDimension + axis]);
    }
    value = value * params.scale[axis] + params.shift[axis];
    static_cast<T*>(params.out.data)[voxel * params.out.pitch + axis] = FromFloat<T>(value);
  });
}

}  // namespace

// ---- launchers

cudaError_t VoxelPositions(const VoxelPositionsParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0) return cudaSuccess;
  const NvtxRange range("VoxelPositions");
  if (params.minima != nullptr) {
    const size_t bytes = static_cast<size_t>(params.num_samples) * kMaxDimension * sizeof(float);
    VOXSERVE_RETURN_IF_CUDA(Clear(params.minima, bytes, stream));
    const dim3 blocks(kMinimumBlocks, static_cast<unsigned>(params.num_samples));
    SampleMinimaKernel<<<blocks, kBlockThreads, 0, stream>>>(params, reinterpret_cast<uint32_t*>(params.minima));
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  }
  return VisitFeatureType(params.out.dtype, [&](auto zero) {
    const RowChunks rows(params.out.capacity, params.out.channels, params.out.num_rows);
    VoxelPositionsKernel<decltype(zero)><<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
