#pragma once

// A CompactKey packs a sample and a coordinate in as few bits as one batch needs, so that a radix sort on the CPU makes
// few passes. Each axis has a field of just enough bits for coordinate - min; the sample is above the fields. Compact
// keys have the same order as CoordinateKeys.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/coordinates/coordinate_key.h"

namespace voxserve::kernels {

class CompactKey {
 public:
  // Coordinates are in [min, max] on each axis, and samples in [0, num_samples). A batch without coordinates may pass
  // max < min.
  CompactKey(const CoordinateKey& layout, const Axes& min, const Axes& max, int32_t num_samples)
      : layout_(layout), min_(min) {
    for (int axis = layout.dimension() - 1; axis >= 0; --axis) {
      const auto extent = static_cast<uint64_t>(std::max<int64_t>(0, int64_t{max[axis]} - min[axis]));
      shift_[axis] = sample_shift_;
      mask_[axis] = ~(~uint64_t{0} << std::bit_width(extent));
      sample_shift_ += std::bit_width(extent);
    }
    num_bits_ = sample_shift_ + std::bit_width(static_cast<uint64_t>(std::max(num_samples - 1, 0)));
  }

  // Every compact key is below 2^num_bits().
  int num_bits() const { return num_bits_; }

  // The compact key of a site is the OR of PackSample and of PackAxis for each axis.
  uint64_t PackSample(int32_t sample) const { return static_cast<uint64_t>(sample) << sample_shift_; }
  uint64_t PackAxis(int axis, int64_t coordinate) const {
    return static_cast<uint64_t>(coordinate - min_[axis]) << shift_[axis];
  }
  // Returns the CoordinateKey of a compact key.
  uint64_t Unpack(uint64_t compact) const {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < layout_.dimension(); ++axis) {
      coordinate[axis] = static_cast<int32_t>(static_cast<int64_t>(compact >> shift_[axis] & mask_[axis]) + min_[axis]);
    }
    return layout_.Pack(static_cast<int32_t>(compact >> sample_shift_), coordinate);
  }

 private:
  CoordinateKey layout_;
  Axes min_;
  int shift_[kMaxDimension] = {};
  uint64_t mask_[kMaxDimension] = {};
  int sample_shift_ = 0;  // at most 54
  int num_bits_ = 0;
};

}  // namespace voxserve::kernels
