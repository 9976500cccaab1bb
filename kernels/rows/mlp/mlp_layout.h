#pragma once

// The order of weights in the memory of Mlp (mlp.h). Packing on the host and the kernel share it.
//
// Chunk c of 64 hidden channels has two parts, one after the other:
//  - first: the transposed weights W1^T of its 64 hidden channels, [64, padded in],
//  - second: the transposed weights W2^T of all outputs, [padded out, 64].
// Both are stored as the second factor of a product of warp groups (warp_group_products.cuh): rows of 128 bytes, in the
// 128-byte swizzle. Where the padded input is no multiple of 64 channels, the first part has rows of 64 bytes, in the
// 64-byte swizzle. A row of more bytes is cut into slices, which lie one after the other.
//
// A thread of a warp group holds 4 values of each 16 columns of a product's factor or sums: columns 2 t, 2 t + 1, 2 t +
// 8 and 2 t + 9. For the input and the output the weights are permuted within each 32 channels, so that a thread's 8
// values are 8 neighbouring channels, 8 t to 8 t + 7: it loads and stores 16 bytes at a time (MlpChannelOf).

#include <cstdint>

namespace voxserve::kernels {

inline constexpr int32_t kMlpChunk = 64;  // hidden channels
inline constexpr int32_t kMaxMlpHiddenChannels = 1024;

// Returns the channel of the input or output at a place of a product.
constexpr int32_t MlpChannelOf(int32_t place) {
  const int32_t in_32 = place % 32;  // 16 a + 8 b + 2 t + e
  return place - in_32 + in_32 / 2 % 4 * 8 + in_32 / 8 * 2 + in_32 % 2;
}

// Returns the bytes of a row of the first part's slices.
constexpr int32_t MlpFirstRowBytes(int32_t padded_in) { return padded_in % 64 == 0 ? 128 : 64; }
constexpr int32_t MlpFirstValues(int32_t padded_in) { return kMlpChunk * padded_in; }
constexpr int32_t MlpSecondValues(int32_t padded_out) { return padded_out * kMlpChunk; }

// Returns where the weight of a place of the input and a hidden channel of the chunk lies in the first part.
constexpr int32_t MlpFirstPlace(int32_t padded_in, int32_t place, int32_t hidden) {
  const int32_t row_values = MlpFirstRowBytes(padded_in) / 2;
  const int32_t vector = place % row_values / 8;
  const int32_t swizzled = row_values == 64 ? vector ^ hidden % 8 : vector ^ hidden / 2 % 4;
  return place / row_values * kMlpChunk * row_values + hidden * row_values + swizzled * 8 + place % 8;
}

// Returns where the weight of a hidden channel of the chunk and a place of the output lies in the second part.
constexpr int32_t MlpSecondPlace(int32_t hidden, int32_t place) {
  return place * kMlpChunk + (hidden / 8 ^ place % 8) * 8 + hidden % 8;
}

}  // namespace voxserve::kernels
