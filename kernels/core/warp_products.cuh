#pragma once

// Products of a tile that lies in shared memory by a block's warps, with float32 sums in their registers. They exist
// from sm_80 on; whoever calls them guards his code by __CUDA_ARCH__. Included by .cu files alone.
//
// A row of either factor holds kRowBytes of the axis that is summed over: the inputs' rows are the tile's, the weights'
// its columns. A row's 16-byte vector v lies at place v ^ (row % 8) of 128 bytes, at v ^ (row / 2 % 4) of 64, so that
// loads of 8 rows do not meet in a bank.

#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

// Warps side by side over the rows and, where the tile is wide, over the columns.
template <typename T, int kTileRows, int kTileColumns, int kTileThreads, int kRowBytes>
class WarpTile {
 public:
  static constexpr int kColumnWarps = kTileColumns < 64 ? 1 : kTileThreads / 64;
  static constexpr int kRowWarps = kTileThreads / 32 / kColumnWarps;
  static constexpr int kRowTiles = kTileRows / kRowWarps / 16;          // of 16 rows, a warp's
  static constexpr int kColumnTiles = kTileColumns / kColumnWarps / 8;  // of 8 columns, a warp's
  static_assert(kColumnTiles % 2 == 0 && kRowTiles > 0);
  static_assert(kRowBytes == 128 || kRowBytes == 64);

  // The warp's first row and column.
  __device__ static int32_t WarpRow() { return static_cast<int32_t>(threadIdx.x) / 32 % kRowWarps * kRowTiles * 16; }
  __device__ static int32_t WarpColumn() {
    return static_cast<int32_t>(threadIdx.x) / 32 / kRowWarps * kColumnTiles * 8;
  }

  // Adds the products of one row's bytes. By whole warps; `inputs` and `weights` are addresses in shared memory.
  __device__ void Multiply(uint32_t inputs, uint32_t weights) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint32_t row_swizzle = kRowBytes == 128 ? lane % 8 : lane / 2 % 4;
    const uint32_t a_row = inputs + (WarpRow() + lane % 16) * kRowBytes;
    const uint32_t b_row = weights + (WarpColumn() + lane / 16 * 8 + lane % 8) * kRowBytes;
#pragma unroll
    for (uint32_t step = 0; step < kRowBytes / 32; ++step) {
      const uint32_t a_vector = ((2 * step + lane / 16) ^ row_swizzle) * 16;
      const uint32_t b_vector = ((2 * step + lane / 8 % 2) ^ row_swizzle) * 16;
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) Load(a[i], a_row + i * 16 * kRowBytes + a_vector);
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t b[4];  // of two tiles
        Load(b, b_row + j * 8 * kRowBytes + b_vector);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          MultiplyAdd<T>(sums[i][j], a[i], b[0], b[1]);
          MultiplyAdd<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Of lane 4 * g + t, sums[i][j] are those of the warp's row 16 * i + g, columns 8 * j + 2 * t and the next, and of
  // row 16 * i + g + 8, the same.
  float sums[kRowTiles][kColumnTiles][4] = {};

 private:
  // A vector of float32 is 4 values wide, as a matrix row of 8 values of 16 bits is: the same loads serve both.
  __device__ static void Load(uint32_t (&to)[4], uint32_t row) {
    LoadMatrices(to, row);
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (uint32_t& value : to) value = RoundedToTf32(value);
    }
  }
};

}  // namespace voxserve::kernels::cuda
