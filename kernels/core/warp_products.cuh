#pragma once

// WarpTile multiplies a tile of inputs by a tile of weights, both in shared memory, with the tensor core instructions
// of a block's warps (tensor_cores.cuh). The sums stay in the threads' registers, in float32 or, if T has 8 bits, in
// int32. The instructions exist from sm_80 on, and the caller guards the code by __CUDA_ARCH__. Only .cu files include
// this header.
//
// The rows of the inputs are the rows of the tile of sums, and the rows of the weights are its columns. A row holds
// kRowBytes or kWeightRowBytes bytes along the axis that is summed over. Vector v of a row (16 bytes each) is stored at
// place v ^ (row % 8) in rows of 128 bytes, at place v ^ (row / 2 % 4) in rows of 64 bytes, and at place
// v ^ (row / 4 % 2) in rows of 32 bytes, so that loads of 8 rows use different banks.

#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

// Adds a product of A [16, 32], of T, and B [32, 8], of int8, to d. The registers are those of a product in 16 bits
// (tensor_cores.cuh), with two neighbouring values of 8 bits in the place of each value of 16 bits. All lanes of a warp
// call it. Sums that exceed an int32 wrap around.
template <typename T>
__device__ void MultiplyAdd(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, uint8_t> || std::is_same_v<T, int8_t>);
  if constexpr (std::is_same_v<T, uint8_t>) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The warps share the tile of kTileRows x kTileColumns sums: they divide its rows and, from 64 columns on, also its
// columns.
template <typename T, int kTileRows, int kTileColumns, int kTileThreads, int kRowBytes, int kWeightRowBytes = kRowBytes>
class WarpTile {
 public:
  static constexpr int kColumnWarps = kTileColumns < 64 ? 1 : kTileThreads / 64;
  static constexpr int kRowWarps = kTileThreads / 32 / kColumnWarps;
  static constexpr int kRowTiles = kTileRows / kRowWarps / 16;          // tiles of 16 rows per warp
  static constexpr int kColumnTiles = kTileColumns / kColumnWarps / 8;  // tiles of 8 columns per warp
  static_assert(kColumnTiles % 2 == 0 && kRowTiles > 0);
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  static_assert(kWeightRowBytes == kRowBytes || kWeightRowBytes == 32);
  using Sum = std::conditional_t<sizeof(T) == 1, int32_t, float>;

  // Returns the first row and column of the warp.
  __device__ static int32_t WarpRow() { return static_cast<int32_t>(threadIdx.x) / 32 % kRowWarps * kRowTiles * 16; }
  __device__ static int32_t WarpColumn() {
    return static_cast<int32_t>(threadIdx.x) / 32 / kRowWarps * kColumnTiles * 8;
  }

  // Adds to `sums` the products over the kWeightRowBytes bytes of a row of weights. In a row of inputs these bytes
  // begin with vector first_vector, an even number. All lanes of a warp call it. `inputs` and `weights` are addresses
  // in shared memory.
  __device__ void Multiply(uint32_t inputs, uint32_t weights, uint32_t first_vector = 0) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint32_t a_row = inputs + (WarpRow() + lane % 16) * kRowBytes;
    const uint32_t b_row = weights + (WarpColumn() + lane / 16 * 8 + lane % 8) * kWeightRowBytes;
#pragma unroll
    for (uint32_t step = 0; step < kWeightRowBytes / 32; ++step) {
      const uint32_t a_vector = ((first_vector + 2 * step + lane / 16) ^ Swizzle<kRowBytes>(lane)) * 16;
      const uint32_t b_vector = ((2 * step + lane / 8 % 2) ^ Swizzle<kWeightRowBytes>(lane)) * 16;
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) Load(a[i], a_row + i * 16 * kRowBytes + a_vector);
#pragma unroll
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t b[4];  // two tiles
        Load(b, b_row + j * 8 * kWeightRowBytes + b_vector);
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
  Sum sums[kRowTiles][kColumnTiles][4] = {};

 private:
  // Returns the number by which the places of vectors in the lane's row are changed, in rows of kBytes bytes.
  template <int kBytes>
  __device__ static uint32_t Swizzle(uint32_t lane) {
    return kBytes == 128 ? lane % 8 : kBytes == 64 ? lane / 2 % 4 : lane / 4 % 2;
  }

  // Loads 16-byte vectors. One vector holds 4 float32 values, 8 values of 16 bits or 16 of 8 bits, so the same
  // instruction loads all types.
  __device__ static void Load(uint32_t (&to)[4], uint32_t row) {
    LoadMatrices(to, row);
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (uint32_t& value : to) value = RoundedToTf32(value);
    }
  }
};

}  // namespace voxserve::kernels::cuda
