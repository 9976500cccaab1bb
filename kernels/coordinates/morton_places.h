#pragma once

// MortonPlaces numbers the cells of boxes [0, shape), one box per sample, in the order of their MortonKeys. The number
// of a cell is its place. OutputBitmap uses places as the positions of bits.
//
// A place has the bits of the cell's coordinate, interleaved as in a MortonKey, but without the bits above an axis's
// size. The dropped bits are 0 in all cells, so the order stays that of MortonKeys. A box then needs about as many
// places as it has cells, with each axis rounded up to a power of two, even if its axes have very different sizes. The
// samples' places follow each other; each sample has 2^sample_bits() places.
//
// Each axis sets bits of its own in a place. So a place is the OR of one part per axis, and a "dilated integer"
// addition moves it along an axis (the source is in morton_key.h).
//
// Pure functions, any thread, host and device.

#include <bit>
#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve::kernels {

class MortonPlaces {
 public:
  static constexpr int kMinSampleBits = 5;  // a sample has whole words of 32 places
  static constexpr int kMaxSampleBits = 40;

  constexpr MortonPlaces() = default;
  // is_valid() is false if an axis is empty or beyond a key's limits, or if a sample needs over 2^kMaxSampleBits
  // places.
  constexpr MortonPlaces(int dimension, const Axes& shape) {
    const CoordinateKey layout(dimension);
    int axis_bits[kMaxDimension] = {0, 0, 0, 0};
    int bits = 0;
    for (int axis = 0; axis < dimension; ++axis) {
      if (shape[axis] < 1 || int64_t{shape[axis]} > int64_t{layout.max_coordinate()} + 1) return;
      axis_bits[axis] = std::bit_width(static_cast<uint32_t>(shape[axis] - 1));
      bits += axis_bits[axis];
    }
    if (bits > kMaxSampleBits) return;
    sample_bits_ = bits < kMinSampleBits ? kMinSampleBits : bits;
    bits = 0;
    for (int bit = 0; bit < layout.axis_bits(); ++bit) {
      for (int axis = dimension - 1; axis >= 0; --axis) {
        if (bit >= axis_bits[axis]) continue;
        axis_mask_[axis] |= uint64_t{1} << bits;
        key_bit_[bits++] = static_cast<int8_t>(bit * dimension + dimension - 1 - axis);
      }
    }
    batch_shift_ = layout.batch_shift();
    // In a field, a coordinate >= 0 has the bias's bit, the topmost, and its own bits.
    bias_ = ((uint64_t{1} << dimension) - 1) << (batch_shift_ - dimension);
  }

  constexpr bool is_valid() const { return sample_bits_ > 0; }
  constexpr int sample_bits() const { return sample_bits_; }

  // The place of a cell is the OR of OfSample(its sample) and OnAxis(axis, its coordinate) of all axes.
  constexpr uint64_t OfSample(int32_t sample) const { return static_cast<uint64_t>(sample) << sample_bits_; }
  // Accepts any coordinate, and uses it modulo 2^(number of the axis's bits).
  constexpr uint64_t OnAxis(int axis, int64_t coordinate) const {
    uint64_t place = 0;
    auto rest = static_cast<uint64_t>(coordinate);
    for (uint64_t mask = axis_mask_[axis]; mask != 0; mask &= mask - 1, rest >>= 1) {
      if ((rest & 1) != 0) place |= mask & (~mask + 1);  // the mask's lowest bit
    }
    return place;
  }
  // Returns OnAxis(axis, a + b) from OnAxis(axis, a) and OnAxis(axis, b).
  constexpr uint64_t AddOnAxis(int axis, uint64_t a, uint64_t b) const {
    // Ones between the bits of an axis carry an overflow on to the axis's next bit.
    const uint64_t mask = axis_mask_[axis];
    return ((a | ~mask) + b) & mask;
  }

  // Returns the MortonKey of the cell at a place. Key(a | b) is Key(a) | Key(b).
  constexpr uint64_t Key(uint64_t place) const {
    uint64_t key = place >> sample_bits_ << batch_shift_ | bias_;
    for (int bit = 0; bit < sample_bits_; ++bit) key |= (place >> bit & 1) << key_bit_[bit];
    return key;
  }

 private:
  int sample_bits_ = 0;
  int batch_shift_ = 0;
  uint64_t bias_ = 0;
  uint64_t axis_mask_[kMaxDimension] = {0, 0, 0, 0};  // the bits of a place that belong to each axis
  int8_t key_bit_[kMaxSampleBits] = {};               // the position of each bit of a place in a MortonKey
};

}  // namespace voxserve::kernels
