#pragma once

// These classes turn the results of a warp in shared memory: from the layout of a product's sums
// (warp_group_products.cuh), in which a lane holds scattered pairs, to rows of neighbouring channels, which lanes store
// and whose residuals they load. A lane owns the same places of rows before and after. Each warp has its own shared
// memory of kTurnedFloats. Only .cu files include this header.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kTurnedFloats = 256;

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Returns the address of a warp's memory. shared: that of all warps.
__device__ inline uint32_t TurnedMemoryOf(uint32_t shared, uint32_t warp) {
  return shared + warp * (kTurnedFloats * static_cast<uint32_t>(sizeof(float)));
}

__device__ inline void StoreSharedVector(uint32_t to, const uint4& vector) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(vector.x), "r"(vector.y), "r"(vector.z),
               "r"(vector.w)
               : "memory");
}

// Stores four 8 x 8 matrices of 16-bit values. Lane 8 * i + r passes the address of row r of matrix i. Lane 4 * g + t
// passes (row g, columns 2t, 2t+1) of each matrix.
__device__ inline void StoreMatrices(uint32_t row, const uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
// Does the same with each matrix transposed: lane 4 * g + t passes (rows 2t, 2t+1, column g).
__device__ inline void StoreTransposedMatrices(uint32_t row, const uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Turns results whose rows are positions: 16 positions and 32 channels. In the layout of sums a lane has 8
// values of each half of the channels: for each 8 channels those of two rows, two each. In rows, lane 4 * g + t has
// channels 8 * t to 8 * t + 7 of rows g and g + 8.
class TurnedPositions {
 public:
  // shared: the block's memory for this, kTurnedFloats for each warp, 128-byte aligned.
  __device__ explicit TurnedPositions(uint32_t shared)
      : lane_(threadIdx.x % 32),
        begin_(TurnedMemoryOf(shared, threadIdx.x / 32)),
        vectors_(Place(lane_ / 4, lane_ % 4)),
        matrices_(Place(lane_ % 8 + lane_ / 8 % 2 * 8, lane_ / 16)) {}

  // From rows to the layout of sums, in 16 bits.
  __device__ void ToSums(const uint4 (&rows)[2], uint32_t (&words)[8]) const {
    StoreSharedVector(vectors_, rows[0]);
    StoreSharedVector(vectors_ + 8 * kRowBytes, rows[1]);
    __syncwarp();
    LoadMatrices(reinterpret_cast<uint32_t(&)[4]>(words[0]), matrices_);
    LoadMatrices(reinterpret_cast<uint32_t(&)[4]>(words[4]), matrices_ ^ kTwoVectors);
    __syncwarp();
  }

  // From the layout of sums to rows, in 16 bits.
  template <typename T>
  __device__ void ToRows(const Pack<T, 8> (&values)[2], Pack<T, 8> (&rows)[2]) const {
    static_assert(sizeof(T) == 2);
    StoreMatrices(matrices_, reinterpret_cast<const uint32_t*>(&values[0]));
    StoreMatrices(matrices_ ^ kTwoVectors, reinterpret_cast<const uint32_t*>(&values[1]));
    __syncwarp();
    reinterpret_cast<float4&>(rows[0]) = LoadSharedFloats(vectors_);
    reinterpret_cast<float4&>(rows[1]) = LoadSharedFloats(vectors_ + 8 * kRowBytes);
    __syncwarp();
  }

  // In float32: 8 rows at a time.
  __device__ void ToRows(const Pack<float, 8> (&values)[2], Pack<float, 8> (&rows)[2]) const {
    constexpr uint32_t kFloatRowBytes = 128;
    const uint32_t row = lane_ / 4, line = begin_ + row * kFloatRowBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int eight = 0; eight < 4; ++eight) {
        const uint32_t vector = eight * 2 + lane_ % 4 / 2;  // of four values; its place depends on the row
        const uint32_t to = line + (vector ^ row) * 16 + lane_ % 2 * 8;
        StoreSharedFloat(to, values[eight / 2].values[eight % 2 * 4 + half * 2]);
        StoreSharedFloat(to + 4, values[eight / 2].values[eight % 2 * 4 + half * 2 + 1]);
      }
      __syncwarp();
      auto* const four = reinterpret_cast<float4*>(&rows[half]);
      four[0] = LoadSharedFloats(line + (lane_ % 4 * 2 ^ row) * 16);
      four[1] = LoadSharedFloats(line + ((lane_ % 4 * 2 + 1) ^ row) * 16);
      __syncwarp();
    }
  }

 private:
  static constexpr uint32_t kRowBytes = 64;
  static constexpr uint32_t kTwoVectors = 32;

  // Vectors of 16 bytes stand at other places from row to row, so that no two of a matrix are in the same banks.
  __device__ uint32_t Place(uint32_t row, uint32_t vector) const {
    return begin_ + row * kRowBytes + (vector ^ row / 2 % 4) * 16;
  }

  const uint32_t lane_, begin_, vectors_, matrices_;
};

// Turns results whose rows are channels: 16 channels and 16 positions. In the layout of sums a lane has 8
// values: for each 8 positions those of two channels, two each. In rows, a lane has 8 channels of position lane / 2,
// from lane % 2 * 8 on.
class TurnedChannels {
 public:
  // shared: as for TurnedPositions.
  __device__ explicit TurnedChannels(uint32_t shared)
      : lane_(threadIdx.x % 32),
        begin_(TurnedMemoryOf(shared, threadIdx.x / 32)),
        vectors_(Place(lane_ / 2, lane_ % 2)),
        matrices_(Place(lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2)) {}

  __device__ void ToSums(const uint4& row, uint32_t (&words)[4]) const {
    StoreSharedVector(vectors_, row);
    __syncwarp();
    LoadTransposedMatrices(words, matrices_);
    __syncwarp();
  }

  template <typename T>
  __device__ void ToRow(const Pack<T, 8>& values, Pack<T, 8>& row) const {
    static_assert(sizeof(T) == 2);
    StoreTransposedMatrices(matrices_, reinterpret_cast<const uint32_t*>(&values));
    __syncwarp();
    reinterpret_cast<float4&>(row) = LoadSharedFloats(vectors_);
    __syncwarp();
  }

  __device__ void ToRow(const Pack<float, 8>& values, Pack<float, 8>& row) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t position = i / 4 * 8 + lane_ % 4 * 2 + i % 2, channel = lane_ / 4 + i / 2 % 2 * 8;
      StoreSharedFloat(FloatPlace(position, channel / 4) + channel % 4 * 4, values.values[i]);
    }
    __syncwarp();
    auto* const four = reinterpret_cast<float4*>(&row);
    four[0] = LoadSharedFloats(FloatPlace(lane_ / 2, lane_ % 2 * 2));
    four[1] = LoadSharedFloats(FloatPlace(lane_ / 2, lane_ % 2 * 2 + 1));
    __syncwarp();
  }

 private:
  // Places of 16 bytes, as in TurnedPositions.
  __device__ uint32_t Place(uint32_t position, uint32_t vector) const {
    return begin_ + position * 32 + (vector ^ position / 4 % 2) * 16;
  }
  __device__ uint32_t FloatPlace(uint32_t position, uint32_t vector) const {
    return begin_ + position * 64 + (vector ^ position / 2 % 4) * 16;
  }

  const uint32_t lane_, begin_, vectors_, matrices_;
};

#endif

}  // namespace voxserve::kernels::cuda
