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
        const int up = bit * dimension + dimension - 1 - axis - bits;
        if (num_runs_ == 0 || run_shift_[num_runs_ - 1] != up) run_shift_[num_runs_++] = static_cast<int8_t>(up);
        run_mask_[num_runs_ - 1] |= uint64_t{1} << bits++;
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

  // Returns the OR of OnAxis of all axes for the coordinates of which `translation` is MortonKey::Translation.
  constexpr uint64_t OfTranslation(uint64_t translation) const {
    uint64_t place = 0;
    for (int run = 0; run < num_runs_; ++run) place |= translation >> run_shift_[run] & run_mask_[run];
    return place;
  }
  // Returns the bits of a place that OnAxis of this axis sets.
  constexpr uint64_t BitsOnAxis(int axis, uint64_t place) const { return place & axis_mask_[axis]; }

  // Returns the MortonKey of the cell at a place.
  constexpr uint64_t Key(uint64_t place) const {
    uint64_t key = place >> sample_bits_ << batch_shift_ | bias_;
    for (int run = 0; run < num_runs_; ++run) key |= (place & run_mask_[run]) << run_shift_[run];
    return key;
  }

 private:
  int sample_bits_ = 0;
  int batch_shift_ = 0;
  uint64_t bias_ = 0;
  uint64_t axis_mask_[kMaxDimension] = {0, 0, 0, 0};  // the bits of a place that belong to each axis
  // Neighbouring bits of a place that are neighbours in a MortonKey too are a run. A key has a run's bits this much
  // higher up. Boxes have few runs, since their axes have about the same number of bits, or far fewer.
  int num_runs_ = 0;
  uint64_t run_mask_[kMaxSampleBits] = {};
  int8_t run_shift_[kMaxSampleBits] = {};
};

}  // namespace voxserve::kernels
