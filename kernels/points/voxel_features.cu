#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/points/voxel_features.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread reads the rows of so many points before it uses the first, so that it does not wait for the memory once a
// point. A pillar near the sensor has thousands of points.
constexpr int kRowsAtOnce = 8;

// A thread computes kWidth neighbouring columns of a voxel.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    VoxelFeaturesKernel(const __grid_constant__ VoxelFeaturesParams params) {
  WaitForEarlierKernels();
  const int64_t vectors_a_row = params.out.pitch / kWidth;
  const int64_t num_vectors = NumRows(params.out.capacity, params.out.num_rows) * vectors_a_row;
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < num_vectors; i += stride) {
    const int64_t voxel = i / vectors_a_row;
    const int64_t column = (i - voxel * vectors_a_row) * kWidth;
    const int64_t begin = params.voxel_begin[voxel];
    int64_t count = 1;
    if (params.reduce == VoxelReduce::kMean) {
      count = params.voxel_begin[voxel + 1] - begin;
      if (params.max_points_per_voxel > 0) count = min(count, params.max_points_per_voxel);
    }
    float sums[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) sums[c] = -0.0F;  // -0 plus a value is that value
    // Adds up the columns of `number` points, after it has read all of them.
    int64_t p = 0;
    const auto add_points = [&](auto number) {
      float read[number][kWidth];
#pragma unroll
      for (int i = 0; i < number; ++i) {
        const float* const row = FloatsOf(params.features, params.sorted_points[begin + p + i]) + column;
#pragma unroll
        for (int c = 0; c < kWidth; ++c) read[i][c] = column + c < params.out.channels ? row[c] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < number; ++i) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) sums[c] = __fadd_rn(sums[c], read[i][c]);
      }
      p += number;
    };
    while (p + kRowsAtOnce <= count) add_points(std::integral_constant<int, kRowsAtOnce>());
    while (p < count) add_points(std::integral_constant<int, 1>());
    Pack<T, kWidth> out;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      out.values[c] = FromFloat<T>(count == 1 ? sums[c] : __fdiv_rn(sums[c], static_cast<float>(count)));
    }
    static_cast<Pack<T, kWidth>*>(params.out.data)[i] = out;
  }
}

}  // namespace

cudaError_t VoxelFeatures(const VoxelFeaturesParams& params, cudaStream_t stream) {
  const NvtxRange range("VoxelFeatures");
  if (params.out.capacity == 0 || params.out.pitch == 0) return cudaSuccess;
  return VisitFeatureType(params.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
    const bool is_aligned =
        params.out.pitch % kWidth == 0 && reinterpret_cast<uintptr_t>(params.out.data) % kVectorBytes == 0;
    if (is_aligned) {
      const unsigned num_blocks = NumBlocks(params.out.capacity * (params.out.pitch / kWidth));
      return LaunchEarly(VoxelFeaturesKernel<T, kWidth>, num_blocks, kBlockThreads, 0, stream, params);
    }
    const unsigned num_blocks = NumBlocks(params.out.capacity * params.out.pitch);
    return LaunchEarly(VoxelFeaturesKernel<T, 1>, num_blocks, kBlockThreads, 0, stream, params);
  });
}

}  // namespace voxserve::kernels::cuda
