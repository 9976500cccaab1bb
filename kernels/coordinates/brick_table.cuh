#pragma once

// BrickSlots looks up bricks in a BrickTable, for kernels. Only .cu files include this header.

#include <cstdint>

#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/hash_slots.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// The least number of slots per key of the level. Most bricks have several sites, so far fewer slots are used.
inline constexpr int64_t kBrickSlotsAKey = 2;

// Cuts a MortonKey in two: the upper bits are the brick's key, the lower bits the cell's place in the brick.
template <int kDimension>
struct BrickPlaces {
  static constexpr int kLog2Side = 6 / kDimension;
  static constexpr int32_t kSide = 1 << kLog2Side;  // cells per axis
  static constexpr int kBits = kLog2Side * kDimension;
  static constexpr uint32_t kMask = (1u << kBits) - 1;

  __device__ static uint64_t BrickOf(uint64_t key) { return key >> kBits; }
  __device__ static uint32_t PlaceOf(uint64_t key) { return static_cast<uint32_t>(key) & kMask; }

  // Coordinate returns a place's coordinate on an axis; OnAxis returns the bits of a place that a coordinate sets. The
  // first axis is the most significant, as in a MortonKey.
  __device__ static int32_t Coordinate(uint32_t place, int axis) {
    int32_t coordinate = 0;
#pragma unroll
    for (int bit = 0; bit < kLog2Side; ++bit) {
      coordinate |= static_cast<int32_t>(place >> (bit * kDimension + kDimension - 1 - axis) & 1) << bit;
    }
    return coordinate;
  }
  __device__ static uint32_t OnAxis(int32_t coordinate, int axis) {
    uint32_t place = 0;
#pragma unroll
    for (int bit = 0; bit < kLog2Side; ++bit) {
      place |= (static_cast<uint32_t>(coordinate) >> bit & 1) << (bit * kDimension + kDimension - 1 - axis);
    }
    return place;
  }
};

// Returns the row of a place in a brick, or -1 if the place is no site.
__device__ inline int32_t RowInBrick(uint64_t mask, int32_t first_row, uint32_t place) {
  if ((mask >> place & 1) == 0) return -1;
  return first_row + __popcll(mask & ((uint64_t{1} << place) - 1));
}

class BrickSlots {
 public:
  __device__ explicit BrickSlots(const BrickTable& table)
      : slots_(kBrickSlotsAKey * NumRows(table.capacity, table.num_keys), table.seed),
        keys_(table.brick_keys),
        bricks_(table.bricks) {}

  // keys: keys of bricks (BrickPlaces::BrickOf). Sets found[i] to the brick of keys[i] for each set bit i of `wanted`.
  // If the bit is not set, or the table does not have the brick, found[i] gets a brick without sites. All keys of a
  // thread are looked up together, so that their memory accesses overlap.
  template <int kKeys>
  __device__ void Find(const uint64_t (&keys)[kKeys], uint32_t wanted, Brick (&found)[kKeys]) const {
    static_assert(kKeys <= 32);
    uint32_t slot[kKeys];
    uint64_t seen[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      slot[i] = slots_.First(keys[i]);
      found[i] = {.mask = 0, .first_row = 0, .unused = 0};
    }
    uint32_t there = 0;
    while (wanted != 0) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((wanted >> i & 1) != 0) seen[i] = keys_[slot[i]];
      }
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((wanted >> i & 1) == 0) continue;
        if (seen[i] == keys[i] || seen[i] == kNoKey) {
          there |= static_cast<uint32_t>(seen[i] != kNoKey) << i;
          wanted &= ~(1u << i);
        } else {
          slot[i] = slots_.Next(slot[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if ((there >> i & 1) == 0) continue;
      const ulonglong2 words = *reinterpret_cast<const ulonglong2*>(bricks_ + slot[i]);
      found[i] = {.mask = words.x, .first_row = static_cast<int32_t>(words.y), .unused = 0};
    }
  }

 private:
  HashSlots slots_;
  const uint64_t* keys_;
  const Brick* bricks_;
};

}  // namespace voxserve::kernels::cuda
