#pragma once

// WarpTile multiplies a tile of inputs by a tile of weights, both in shared memory, with the tensor core instructions
// of a block's warps (tensor_cores.cuh). The float32 sums stay in the threads' registers. The instructions exist from
// sm_80 on, and the caller guards the code by __CUDA_ARCH__. Only .cu files include this header.
//
// Each row of both factors holds kRowBytes bytes along the axis that is summed over. The rows of the inputs are the
// rows of the tile of sums, and the rows of the weights are its columns. Vector v of a row (16 bytes each) is stored at
// place v ^ (row % 8) in rows of 128 bytes, and at place v ^ (row / 2 % 4) in rows of 64 bytes, so that loads of 8 rows
// use different banks.

#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

// The warps share the tile of kTileRows x kTileColumns sums: they divide its rows and, from 64 columns on, also its
// columns.
template <typename T, int kTileRows, int kTileColumns, int kTileThreads, int kRowBytes>
class WarpTile {
 public:
  static constexpr int kColumnWarps = kTileColumns < 64 ? 1 : kTileThreads / 64;
  static constexpr int kRowWarps = kTileThreads / 32 / kColumnWarps;
  static constexpr int kRowTiles = kTileRows / kRowWarps / 16;          // tiles of 16 rows per warp
  static constexpr int kColumnTiles = kTileColumns / kColumnWarps / 8;  // tiles of 8 columns per warp
  static_assert(kColumnTiles % 2 == 0 && kRowTiles > 0);
  static_assert(kRowBytes == 128 || kRowBytes == 64);

  // Returns the first row and column of the warp.
  __device__ static int32_t WarpRow() { return static_cast<int32_t>(threadIdx.x) / 32 % kRowWarps * kRowTiles * 16; }
  __device__ static int32_t WarpColumn() {
    return static_cast<int32_t>(threadIdx.x) / 32 / kRowWarps * kColumnTiles * 8;
  }

  // Adds to `sums` the products over the kRowBytes bytes that rows have in shared memory. All lanes of a warp call it.
  // `inputs` and `weights` are addresses in shared memory.
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

  // Lane 4 * g + t holds in sums[i][j] four sums of its warp: those of row 16 * i + g at columns 8 * j + 2 * t and 8 *
  // j + 2 * t + 1, then those of row 16 * i + g + 8 at the same columns.
  float sums[kRowTiles][kColumnTiles][4] = {};

 private:
  // Loads 16-byte vectors. One vector holds 4 float32 values or 8 values of 16 bits, so the same instruction loads
  // both.
  __device__ static void Load(uint32_t (&to)[4], uint32_t row) {
    LoadMatrices(to, row);
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (uint32_t& value : to) value = RoundedToTf32(value);
    }
  }
};

}  // namespace voxserve::kernels::cuda
