#pragma once

// A CoordinateKey is a sample and a coordinate of a site in one 64-bit word. The CPU sorts the rows of a level by these
// keys; the GPU uses MortonKeys (morton_key.h).
//
// The top kBatchBits hold the sample's number. Below them is one field per axis, the first axis most significant. A
// field holds coordinate + 2^(axis_bits - 1), so that negative coordinates sort correctly. Ascending keys are ascending
// (sample, axis 0, axis 1, ...); comments call this the canonical order of rows. Fields have
// (64 - kBatchBits) / dimension bits, at most 32: 32, 27, 18, 13 for 1 to 4 axes.
//
// Fields are adjacent, so one 64-bit addition moves a coordinate by an offset (Translation). The addition is correct as
// long as no field over- or underflows. To guarantee that, valid coordinates stay kCoordinateMargin cells inside their
// field, and no offset is larger than kCoordinateMargin (the model's loader checks every kernel's reach).
//
// Pure functions, any thread.

#include <bit>
#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"

namespace voxserve::kernels {

inline constexpr int kBatchBits = 10;
inline constexpr int32_t kMaxSamples = 1 << kBatchBits;  // samples of one batch
inline constexpr int32_t kCoordinateMargin = 128;        // in cells; the largest |offset| of a translation

// Larger than every key. No coordinate has this key, since the margin keeps the fields from being all ones.
inline constexpr uint64_t kNoKey = ~uint64_t{0};

// The positions of the fields for a dimension of 1 to kMaxDimension.
class CoordinateKey {
 public:
  explicit constexpr CoordinateKey(int32_t dimension)
      : dimension_(dimension),
        axis_bits_((64 - kBatchBits) / dimension < 32 ? (64 - kBatchBits) / dimension : 32),
        bias_(uint64_t{1} << (axis_bits_ - 1)),
        mask_((uint64_t{1} << axis_bits_) - 1) {}

  constexpr int32_t dimension() const { return dimension_; }
  constexpr int axis_bits() const { return axis_bits_; }
  constexpr int Shift(int axis) const { return axis_bits_ * (dimension_ - 1 - axis); }
  constexpr int batch_shift() const { return axis_bits_ * dimension_; }

  // A coordinate is valid if min_coordinate() <= c <= max_coordinate() on every axis: 131,072 - 128 cells each way in 3
  // dimensions, 3,968 in 4.
  constexpr int32_t max_coordinate() const { return static_cast<int32_t>(bias_ - 1) - kCoordinateMargin; }
  constexpr int32_t min_coordinate() const {
    return static_cast<int32_t>(-static_cast<int64_t>(bias_)) + kCoordinateMargin;
  }

  // Makes a key. Requires 0 <= sample < kMaxSamples. The coordinate may be in the margin outside the limits.
  constexpr uint64_t Pack(int32_t sample, const Axes& coordinate) const {
    uint64_t key = static_cast<uint64_t>(sample);
    for (int axis = 0; axis < dimension_; ++axis) {
      key = key << axis_bits_ | ((static_cast<uint64_t>(static_cast<int64_t>(coordinate[axis])) + bias_) & mask_);
    }
    return key;
  }

  // Returns the stored field of one axis: coordinate + bias().
  constexpr uint64_t Field(uint64_t key, int axis) const { return key >> Shift(axis) & mask_; }
  constexpr uint64_t bias() const { return bias_; }

  constexpr int32_t Sample(uint64_t key) const { return static_cast<int32_t>(key >> batch_shift()); }
  constexpr int32_t Coordinate(uint64_t key, int axis) const {
    return static_cast<int32_t>(static_cast<int64_t>(Field(key, axis)) - static_cast<int64_t>(bias_));
  }
  constexpr Axes Unpack(uint64_t key) const {
    Axes coordinate = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension_; ++axis) coordinate[axis] = Coordinate(key, axis);
    return coordinate;
  }

  // Pack(s, c + offset) == Pack(s, c) + Translation(offset), modulo 2^64, as long as no field leaves its range.
  constexpr uint64_t Translation(const Axes& offset) const {
    uint64_t translation = 0;
    for (int axis = 0; axis < dimension_; ++axis) {
      translation += static_cast<uint64_t>(static_cast<int64_t>(offset[axis])) << Shift(axis);
    }
    return translation;
  }

  // Returns a value below every key of this sample and above every key of the samples before it.
  constexpr uint64_t SampleFloor(int32_t sample) const { return static_cast<uint64_t>(sample) << batch_shift(); }

 private:
  int32_t dimension_;
  int axis_bits_;
  uint64_t bias_;
  uint64_t mask_;
};

// Returns the bits that Voxelize gives an axis whose coordinates are 0 to max_coordinate. The number with all these
// bits set is never a coordinate, so that a key of all ones marks a point without a voxel.
constexpr int32_t AxisBitsFor(int64_t max_coordinate) {
  return static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(max_coordinate) + 1));
}
constexpr bool FitsAxisBits(int64_t max_coordinate, int32_t axis_bits) {
  return max_coordinate < (int64_t{1} << axis_bits) - 1;
}

}  // namespace voxserve::kernels
