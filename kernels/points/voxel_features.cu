#include <algorithm>
#include <cstdint>

#include "kernels/core/device_code.h"
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
__device__ void AverageByThreads(const VoxelFeaturesParams& params, int64_t num_voxels) {
  const int64_t vectors_a_row = params.out.pitch / kWidth;
  const int64_t num_vectors = num_voxels * vectors_a_row;
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

// A warp computes a voxel, kWarpColumns columns at a time: 32 lanes read the rows of as many points, and a lane for
// each column adds their values up, in the order of the points.
constexpr int kWarpColumns = 8;
constexpr int kWarpRows = 4;  // rows that a lane reads at a time
constexpr int kTileRows = kWarpRows * 32;
constexpr int kBlockWarps = kBlockThreads / 32;
// Warps take the voxels of a launch that have more points than this on average, as pillars do, if their means have no
// low limit of points.
constexpr int64_t kFewPointsAVoxel = 4;

template <typename T>
__device__ void AverageByWarps(const VoxelFeaturesParams& params, int64_t num_voxels) {
  // The pitch lets lanes write rows, and read columns, without two of them in a bank.
  __shared__ float tiles[kBlockWarps][kTileRows][kWarpColumns + 1];
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  auto& tile = tiles[warp];
  for (int64_t voxel = int64_t{blockIdx.x} * kBlockWarps + warp; voxel < num_voxels;
       voxel += int64_t{gridDim.x} * kBlockWarps) {
    const int64_t begin = params.voxel_begin[voxel];
    int64_t count = params.voxel_begin[voxel + 1] - begin;
    if (params.max_points_per_voxel > 0) count = min(count, params.max_points_per_voxel);
    const int32_t* const of_voxel = params.sorted_points + begin;
    for (int64_t first_column = 0; first_column < params.out.pitch; first_column += kWarpColumns) {
      const auto columns = static_cast<int32_t>(min(int64_t{kWarpColumns}, params.out.channels - first_column));
      float rows[kWarpRows][kWarpColumns];
      int32_t points[kWarpRows];  // those whose rows are read next; -1: there is no such point
      const auto list_points = [&](int64_t first) {
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
          const int64_t p = first + r * 32 + lane;
          points[r] = p < count ? of_voxel[p] : -1;
        }
      };
      const auto read_rows = [&] {
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
          for (int c = 0; c < kWarpColumns; ++c) {
            const bool is_there = points[r] >= 0 && c < columns;
            rows[r][c] = is_there ? FloatsOf(params.features, points[r])[first_column + c] : 0.0F;
          }
        }
      };
      list_points(0);
      read_rows();
      list_points(kTileRows);
      float sum = -0.0F;  // -0 plus a value is that value
      for (int64_t first = 0; first < count; first += kTileRows) {
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
          for (int c = 0; c < kWarpColumns; ++c) tile[r * 32 + lane][c] = rows[r][c];
        }
        __syncwarp();
        if (first + kTileRows < count) {  // the next rows arrive while these are added up
          read_rows();
          list_points(first + 2 * kTileRows);
        }
        const auto num_rows = static_cast<int32_t>(min(int64_t{kTileRows}, count - first));
        if (lane < kWarpColumns) {
#pragma unroll 8
          for (int32_t row = 0; row < num_rows; ++row) sum = __fadd_rn(sum, tile[row][lane]);
        }
        __syncwarp();
      }
      if (lane < kWarpColumns && first_column + lane < params.out.pitch) {
        const float value = count == 1 ? sum : __fdiv_rn(sum, static_cast<float>(count));
        static_cast<T*>(params.out.data)[voxel * params.out.pitch + first_column + lane] =
            FromFloat<T>(lane < columns ? value : 0.0F);
      }
    }
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    VoxelFeaturesKernel(const __grid_constant__ VoxelFeaturesParams params) {
  WaitForEarlierKernels();
  const int64_t num_voxels = NumRows(params.out.capacity, params.out.num_rows);
  if (num_voxels == 0) return;
  const bool has_many_points = params.voxel_begin[num_voxels] > kFewPointsAVoxel * num_voxels;
  const bool uses_many = params.max_points_per_voxel == 0 || params.max_points_per_voxel > kRowsAtOnce;
  if (params.reduce == VoxelReduce::kMean && has_many_points && uses_many) {
    AverageByWarps<T>(params, num_voxels);
  } else {
    AverageByThreads<T, kWidth>(params, num_voxels);
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
    // Enough blocks that AverageByWarps fills the GPU, even if AverageByThreads needs fewer.
    const auto num_blocks = [&](int64_t threads) {
      constexpr int64_t kBlocksAnSm = 6;
      const int64_t for_warps = std::min<int64_t>(NumBlocks(params.out.capacity * 32), kBlocksAnSm * NumSms());
      return static_cast<unsigned>(std::max<int64_t>(NumBlocks(threads), for_warps));
    };
    if (is_aligned) {
      return LaunchEarly(VoxelFeaturesKernel<T, kWidth>, num_blocks(params.out.capacity * (params.out.pitch / kWidth)),
                         kBlockThreads, 0, stream, params);
    }
    return LaunchEarly(VoxelFeaturesKernel<T, 1>, num_blocks(params.out.capacity * params.out.pitch), kBlockThreads, 0,
                       stream, params);
  });
}

}  // namespace voxserve::kernels::cuda
