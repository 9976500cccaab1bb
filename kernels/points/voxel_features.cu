#include <algorithm>
#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/points/voxel_features.h"

namespace voxserve::kernels::cuda {
namespace {

// A thread reads the rows of so many points, and the numbers of the next points, before it uses the first row, so that
// it does not wait for the memory once a point. A pillar near the sensor has thousands of points.
constexpr int kRowsAtOnce = 12;

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
    const auto read_row = [&](int32_t point, float(&values)[kWidth]) {
      const float* const row = FloatsOf(params.features, point) + column;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) values[c] = column + c < params.out.channels ? row[c] : 0.0F;
    };
    const auto add_row = [&](const float(&values)[kWidth]) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sums[c] = __fadd_rn(sums[c], values[c]);
    };
    const int32_t* const of_voxel = params.sorted_points + begin;
    int64_t p = 0;
    int32_t points[kRowsAtOnce];  // those whose rows are read next
    const auto list_points = [&] {
      const bool has_all = p + kRowsAtOnce <= count;
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) points[i] = has_all ? of_voxel[p + i] : 0;
      return has_all;
    };
    for (bool has_points = list_points(); has_points;) {
      float read[kRowsAtOnce][kWidth];
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) read_row(points[k], read[k]);
      p += kRowsAtOnce;
      has_points = list_points();
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) add_row(read[k]);
    }
    for (; p < count; ++p) {
      float read[kWidth];
      read_row(of_voxel[p], read);
      add_row(read);
    }
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
