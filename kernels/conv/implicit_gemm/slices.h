#pragma once

// This header defines how an implicit GEMM (implicit_gemm.h) cuts the axis that it sums over into slices of 64 bytes,
// or in 8 bits of 32 bytes, and where it keeps the 16-byte vectors of a slice in shared memory. Weights are packed in
// the layout of shared memory: slice by slice [padded out channels, bytes of a slice], with the output channels in the
// order of PackedColumn.
//
// In 8 bits a slice is half as long, so that it still has 32 channels: layers of 32 and 96 channels have whole slices.
// Input rows keep their 64 bytes in shared memory; two slices lie side by side there.

#include <cstdint>

#include "kernels/core/dtype.h"

namespace voxserve::kernels {

inline constexpr int32_t kSliceBytes = 64;
inline constexpr int32_t kSliceVectorBytes = 16;
inline constexpr int32_t kSliceVectors = kSliceBytes / kSliceVectorBytes;
inline constexpr int32_t kInt8SliceBytes = 32;
constexpr int32_t SliceBytesOf(DType dtype) { return SizeOf(dtype) == 1 ? kInt8SliceBytes : kSliceBytes; }
inline constexpr int32_t kOutChannelPadding = 32;
inline constexpr int32_t kSlicesAStage = 2;          // a stage: slices that are copied and multiplied together
inline constexpr int32_t kTileBits = kSliceVectors;  // bits per tile in a slice's mask, one for each of its offsets

constexpr int32_t PaddedOutChannels(int32_t channels) {
  return (channels + kOutChannelPadding - 1) / kOutChannelPadding * kOutChannelPadding;
}

// Returns the column of a product in which an output channel is placed. In every 32 columns, lane 4 g + t of a warp
// holds the sums of columns 8 j + 2 t and 8 j + 2 t + 1 for j = 0 to 3 (tensor_cores.cuh). Channels 8 t to 8 t + 7 are
// placed in these columns, so that each thread stores neighbouring channels.
constexpr int32_t PackedColumn(int32_t channel) {
  const int32_t t = channel / 8 % 4, j = channel / 2 % 4;
  return channel / 32 * 32 + 8 * j + 2 * t + channel % 2;
}

// Returns where a 16-byte vector of a row is stored in a slice, in vectors from the slice's beginning. This is the
// 64-byte swizzle, which puts the vectors of 8 rows into different banks.
constexpr int32_t SwizzledSliceVector(int32_t row, int32_t vector) {
  return row * kSliceVectors + (vector ^ (row / 2 % kSliceVectors));
}
// Returns the same for a slice of weights in 8 bits. This is the 32-byte swizzle.
constexpr int32_t SwizzledInt8SliceVector(int32_t row, int32_t vector) {
  constexpr int32_t kVectors = kInt8SliceBytes / kSliceVectorBytes;
  return row * kVectors + (vector ^ (row / 4 % kVectors));
}

// The axis that is summed over, [num_offsets, in_channels], as a sequence of slices.
struct SliceAxis {
  constexpr SliceAxis(int32_t num_offsets, int32_t in_channels, DType dtype)
      : slice_values(SliceBytesOf(dtype) / static_cast<int32_t>(SizeOf(dtype))) {
    // The channels of an offset take one vector of a slice, half a slice, a whole slice or several slices.
    offset_values = kSliceVectorBytes / static_cast<int32_t>(SizeOf(dtype));
    while (offset_values < in_channels && offset_values < slice_values) offset_values *= 2;
    offsets_a_slice = slice_values / offset_values;
    slices_an_offset = (in_channels + slice_values - 1) / slice_values;
    num_slices = (num_offsets + offsets_a_slice - 1) / offsets_a_slice * slices_an_offset;
  }

  // Returns the number of the slice that holds a channel of offset k.
  constexpr int32_t SliceOf(int32_t k, int32_t channel) const { return SliceOfPart(k, channel / slice_values); }
  // Does the same for slice `part` of offset k, counted within the offset. The code has no division, since threads on
  // the critical path of a kernel run it.
  constexpr int32_t SliceOfPart(int32_t k, int32_t part) const {
    return (k >> offsets_a_slice / 2) * slices_an_offset + part;
  }
  // Returns the channel's place within its slice, in values.
  constexpr int32_t PlaceInSlice(int32_t k, int32_t channel) const {
    return k % offsets_a_slice * offset_values + channel % slice_values;
  }

  // Reduces one word of a mask of offsets to one bit for each slice: the bit of the slice's first offset.
  constexpr uint32_t SliceBits(uint32_t offsets) const {
    if (offsets_a_slice > 1) offsets |= offsets >> 1;
    if (offsets_a_slice > 2) offsets |= offsets >> 2;
    return offsets_a_slice == 1 ? offsets : offsets & (offsets_a_slice == 2 ? 0x55555555u : 0x11111111u);
  }

  int32_t slice_values;      // 32 values of 8 or 16 bits, 16 values of 32 bits
  int32_t offset_values;     // places for an offset's channels in a slice
  int32_t offsets_a_slice;   // 1, 2 or 4; in 8 bits 1 or 2
  int32_t slices_an_offset;  // above 1 only if offsets_a_slice is 1
  int32_t num_slices;
};

}  // namespace voxserve::kernels
