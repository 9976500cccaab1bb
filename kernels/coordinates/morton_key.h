#pragma once

// A MortonKey is a sample and a coordinate in one 64-bit word, in Morton (Z) order. On the GPU, the rows of a level are
// sorted by these keys.
//
// The top kBatchBits hold the sample's number. Below them the axes' fields are interleaved bit by bit, the first axis
// most significant in each group of one bit per axis. Fields have the width and bias of CoordinateKey, so both keys
// hold the same coordinates with the same limits and margin. Ascending keys are ascending samples. Within a sample,
// neighbours in space mostly have neighbouring rows. Halving every coordinate keeps the order, so one sort gives all
// levels of a U-Net.
//
// Sources: G. M. Morton, "A computer oriented geodetic data base", IBM, 1966; fields are moved without unpacking by
// "dilated integer" addition, R. Raman and D. S. Wise, IEEE Trans. Computers 57(4), 2008.
//
// Pure functions, any thread, host and device.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve::kernels {

// kDimension: the number of axes, 1 to kMaxDimension.
template <int kDimension>
class MortonKey {
 public:
  static constexpr int kAxisBits = (64 - kBatchBits) / kDimension < 32 ? (64 - kBatchBits) / kDimension : 32;
  static constexpr int kBatchShift = kAxisBits * kDimension;
  static constexpr uint64_t kBias = uint64_t{1} << (kAxisBits - 1);
  static constexpr uint64_t kFieldMask = (uint64_t{1} << kAxisBits) - 1;

  // Moves bit i of a value to bit i * kDimension, for the low kAxisBits bits.
  static constexpr uint64_t Spread(uint64_t value) {
    if constexpr (kDimension == 1) return value;
    if constexpr (kDimension == 2) {
      value = (value | value << 16) & 0x0000FFFF0000FFFFu;
      value = (value | value << 8) & 0x00FF00FF00FF00FFu;
      value = (value | value << 4) & 0x0F0F0F0F0F0F0F0Fu;
      value = (value | value << 2) & 0x3333333333333333u;
      return (value | value << 1) & 0x5555555555555555u;
    }
    if constexpr (kDimension == 3) {
      value = (value | value << 32) & 0x001F00000000FFFFu;
      value = (value | value << 16) & 0x001F0000FF0000FFu;
      value = (value | value << 8) & 0x100F00F00F00F00Fu;
      value = (value | value << 4) & 0x10C30C30C30C30C3u;
      return (value | value << 2) & 0x1249249249249249u;
    }
    value = (value | value << 24) & 0x000000FF000000FFu;
    value = (value | value << 12) & 0x000F000F000F000Fu;
    value = (value | value << 6) & 0x0303030303030303u;
    return (value | value << 3) & 0x1111111111111111u;
  }

  // The inverse of Spread. Other bits of the word are ignored.
  static constexpr uint64_t Gather(uint64_t value) {
    if constexpr (kDimension == 1) return value;
    if constexpr (kDimension == 2) {
      value &= 0x5555555555555555u;
      value = (value | value >> 1) & 0x3333333333333333u;
      value = (value | value >> 2) & 0x0F0F0F0F0F0F0F0Fu;
      value = (value | value >> 4) & 0x00FF00FF00FF00FFu;
      value = (value | value >> 8) & 0x0000FFFF0000FFFFu;
      return (value | value >> 16) & 0x00000000FFFFFFFFu;
    }
    if constexpr (kDimension == 3) {
      value &= 0x1249249249249249u;
      value = (value | value >> 2) & 0x10C30C30C30C30C3u;
      value = (value | value >> 4) & 0x100F00F00F00F00Fu;
      value = (value | value >> 8) & 0x001F0000FF0000FFu;
      value = (value | value >> 16) & 0x001F00000000FFFFu;
      return (value | value >> 32) & 0x00000000001FFFFFu;
    }
    value &= 0x1111111111111111u;
    value = (value | value >> 3) & 0x0303030303030303u;
    value = (value | value >> 6) & 0x000F000F000F000Fu;
    value = (value | value >> 12) & 0x000000FF000000FFu;
    return (value | value >> 24) & 0x000000000000FFFFu;
  }

  // Makes a key. Requires 0 <= sample < kMaxSamples. The coordinate may be in the margin outside the limits
  // (coordinate_key.h).
  static constexpr uint64_t Pack(int32_t sample, const Axes& coordinate) {
    uint64_t key = static_cast<uint64_t>(sample) << kBatchShift;
    for (int axis = 0; axis < kDimension; ++axis) {
      const uint64_t field = (static_cast<uint64_t>(static_cast<int64_t>(coordinate[axis])) + kBias) & kFieldMask;
      key |= Spread(field) << Place(axis);
    }
    return key;
  }

  static constexpr int32_t Sample(uint64_t key) { return static_cast<int32_t>(key >> kBatchShift); }
  static constexpr int32_t Coordinate(uint64_t key, int axis) {
    const uint64_t field = Gather((key & kFieldsMask) >> Place(axis));
    return static_cast<int32_t>(static_cast<int64_t>(field) - static_cast<int64_t>(kBias));
  }
  static constexpr Axes Unpack(uint64_t key) {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < kDimension; ++axis) coordinate[axis] = Coordinate(key, axis);
    return coordinate;
  }

  // Converts an offset of any sign to an argument of Translate.
  static constexpr uint64_t Translation(const Axes& offset) {
    uint64_t translation = 0;
    for (int axis = 0; axis < kDimension; ++axis) {
      const uint64_t field = static_cast<uint64_t>(static_cast<int64_t>(offset[axis])) & kFieldMask;
      translation |= Spread(field) << Place(axis);
    }
    return translation;
  }

  // Translate(Pack(s, c), Translation(offset)) == Pack(s, c + offset), as long as no field leaves its range.
  static constexpr uint64_t Translate(uint64_t key, uint64_t translation) {
    uint64_t moved = key & ~kFieldsMask;
    for (int axis = 0; axis < kDimension; ++axis) moved |= TranslateAxis(key, translation, axis);
    return moved;
  }
  // Returns the bits of Translate that belong to one axis. Translate is the OR of these and of
  // SampleFloor(Sample(key)).
  static constexpr uint64_t TranslateAxis(uint64_t key, uint64_t translation, int axis) {
    // Ones between the bits of an axis carry an overflow on to the axis's next bit.
    const uint64_t bits = AxisMask(axis);
    return ((key | ~bits) + (translation & bits)) & bits;
  }

  // Returns a value below every key of this sample and above every key of the samples before it.
  static constexpr uint64_t SampleFloor(int32_t sample) { return static_cast<uint64_t>(sample) << kBatchShift; }

 private:
  static constexpr uint64_t kFieldsMask = (uint64_t{1} << kBatchShift) - 1;

  static constexpr int Place(int axis) { return kDimension - 1 - axis; }
  static constexpr uint64_t AxisMask(int axis) { return Spread(kFieldMask) << Place(axis); }
};

// Converts a CoordinateKey to the MortonKey of the same sample and coordinate.
constexpr uint64_t ToMortonKey(const CoordinateKey& layout, uint64_t key) {
  const int32_t sample = layout.Sample(key);
  const Axes coordinate = layout.Unpack(key);
  switch (layout.dimension()) {
    case 1:
      return MortonKey<1>::Pack(sample, coordinate);
    case 2:
      return MortonKey<2>::Pack(sample, coordinate);
    case 3:
      return MortonKey<3>::Pack(sample, coordinate);
    default:
      return MortonKey<4>::Pack(sample, coordinate);
  }
}

// Returns the coordinate of a MortonKey of 1 to kMaxDimension axes.
constexpr Axes UnpackMorton(int32_t dimension, uint64_t key) {
  switch (dimension) {
    case 1:
      return MortonKey<1>::Unpack(key);
    case 2:
      return MortonKey<2>::Unpack(key);
    case 3:
      return MortonKey<3>::Unpack(key);
    default:
      return MortonKey<4>::Unpack(key);
  }
}

}  // namespace voxserve::kernels
