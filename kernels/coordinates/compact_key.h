#pragma once

// A key in as few bits as one batch needs, so that a radix sort makes few passes. Each axis holds coordinate - min in
// just enough bits, with the sample above them. The order is that of CoordinateKey.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/coordinates/coordinate_key.h"

namespace voxserve::kernels {

class CompactKey {
 public:
  // Coordinates are in [min, max] on each axis; max below min means that there are none. Samples are in [0,
  // num_samples).
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

  uint64_t PackSample(int32_t sample) const { return static_cast<uint64_t>(sample) << sample_shift_; }
  uint64_t PackAxis(int axis, int64_t coordinate) const {
    return static_cast<uint64_t>(coordinate - min_[axis]) << shift_[axis];
  }
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
