#pragma once

// Products of a tile in shared memory by a block's warps, with float32 sums in their registers. They exist from sm_80
// on: the caller guards the code by __CUDA_ARCH__. Only .cu files include this header.
//
// A row of either factor holds kRowBytes of the axis that is summed over. The inputs' rows are the tile's rows, the
// weights' rows are its columns. A row's 16-byte vector v is stored at place v ^ (row % 8) in rows of 128 bytes, at v ^
// (row / 2 % 4) in rows of 64 bytes, so that loads of 8 rows use different banks.

#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

// Arranges warps side by side over the rows and, if the tile is wide, over the columns.
template <typename T, int kTileRows, int kTileColumns, int kTileThreads, int kRowBytes>
class WarpTile {
 public:
  static constexpr int kColumnWarps = kTileColumns < 64 ? 1 : kTileThreads / 64;
  static constexpr int kRowWarps = kTileThreads / 32 / kColumnWarps;
  static constexpr int kRowTiles = kTileRows / kRowWarps / 16;          // 16 rows each, per warp
  static constexpr int kColumnTiles = kTileColumns / kColumnWarps / 8;  // 8 columns each, per warp
  static_assert(kColumnTiles % 2 == 0 && kRowTiles > 0);
  static_assert(kRowBytes == 128 || kRowBytes == 64);

  // Returns the first row and column of the warp.
  __device__ static int32_t WarpRow() { return static_cast<int32_t>(threadIdx.x) / 32 % kRowWarps * kRowTiles * 16; }
  __device__ static int32_t WarpColumn() {
    return static_cast<int32_t>(threadIdx.x) / 32 / kRowWarps * kColumnTiles * 8;
  }

  // Adds the products of one row's bytes. Whole warps call it; `inputs` and `weights` are addresses in shared memory.
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
        uint32_t b[4];  // two tiles
        Load(b, b_row + j * 8 * kRowBytes + b_vector);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          MultiplyAdd<T>(sums[i][j], a[i], b[0], b[1]);
          MultiplyAdd<T>(sums[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Lane 4 * g + t holds in sums[i][j] the warp's row 16 * i + g at columns 8 * j + 2 * t and the next, then row 16 * i
  // + g + 8 at the same columns.
  float sums[kRowTiles][kColumnTiles][4] = {};

 private:
  // A vector holds 4 float32 values, and a matrix row holds 8 values of 16 bits: both are 16 bytes, so the same loads
  // serve.
  __device__ static void Load(uint32_t (&to)[4], uint32_t row) {
    LoadMatrices(to, row);
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (uint32_t& value : to) value = RoundedToTf32(value);
    }
  }
};

}  // namespace voxserve::kernels::cuda
