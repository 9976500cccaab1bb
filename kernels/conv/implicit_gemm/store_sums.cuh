#pragma once

// How the kernels of kernels/conv/implicit_gemm/implicit_gemm.h store their sums. Included by .cu files alone.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"

namespace voxserve::kernels::cuda {

// Stores neighbouring sums of a row one by one, as far as there are channels. Not inlined: few tiles need it.
template <typename T>
__device__ __noinline__ void StoreSumsOneByOne(const ImplicitGemmArguments<T>& arguments, const float* sums,
                                               int32_t count, int32_t row, int32_t column) {
  for (int32_t i = 0; i < count && column + i < arguments.out_channels; ++i) {
    float sum[1] = {sums[i]};
    const int64_t place = row * arguments.out_pitch + column + i;
    if (arguments.is_out_float) {
      arguments.epilogue.Store(sum, row, column + i, static_cast<float*>(arguments.out) + place);
    } else {
      arguments.epilogue.Store(sum, row, column + i, static_cast<T*>(arguments.out) + place);
    }
  }
}

// Stores kCount neighbouring sums of a row.
template <int kCount, typename T>
__device__ void StoreSums(const ImplicitGemmArguments<T>& arguments, float (&sums)[kCount], int32_t row,
                          int32_t column) {
  if (arguments.has_out_vectors && !arguments.is_out_float && column + kCount <= arguments.out_channels) {
    arguments.epilogue.Store(sums, row, column, static_cast<T*>(arguments.out) + row * arguments.out_pitch + column);
    return;
  }
  float copy[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy[i] = sums[i];
  StoreSumsOneByOne(arguments, copy, kCount, row, column);
}

// Transposes the pairs of four threads, each with four: thread t gets pair t of each.
__device__ inline void TransposePairs(float (&values)[8], int32_t t) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool is_upper = (t & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& low = values[2 * i + e];
        float& high = values[2 * (i + distance) + e];
        const float got = __shfl_xor_sync(~0u, is_upper ? low : high, distance);
        if (is_upper) {
          low = got;
        } else {
          high = got;
        }
      }
    }
  }
}

// Stores a warp's sums of 16 rows. A thread holds two neighbouring columns of every eight of two rows, as products
// leave them (tensor_cores.cuh): four for each eight columns. Four threads of a row exchange theirs, so that each
// stores eight neighbouring columns.
template <int kSums, typename T>
__device__ void StoreWarpSums(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums],
                              int64_t first_place, int32_t first_column, int64_t num_out) {
  static_assert(kSums % 16 == 0, "32 columns at a time");
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t in_row = lane % 4;
  const int64_t place = first_place + lane / 4;
  const int32_t rows[2] = {OutRowOf(arguments, place, num_out), OutRowOf(arguments, place + 8, num_out)};
#pragma unroll
  for (int j = 0; j < kSums / 16; ++j) {
    const int32_t column = first_column + j * 32 + in_row * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[2 * i] = sums[(j * 4 + i) * 4 + half * 2];
        values[2 * i + 1] = sums[(j * 4 + i) * 4 + half * 2 + 1];
      }
      TransposePairs(values, in_row);
      if (rows[half] >= 0 && column < arguments.out_channels) StoreSums(arguments, values, rows[half], column);
    }
  }
}

}  // namespace voxserve::kernels::cuda
