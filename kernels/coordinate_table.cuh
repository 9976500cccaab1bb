#pragma once

// Lookups in a coordinate table, for kernels. Included by .cu files alone.

#include <cstdint>

#include "kernels/coordinate_table.h"
#include "kernels/morton_key.h"
#include "kernels/sample_bounds.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kMinHashSlots = 16;

// Open addressing over the slots that the number of keys asks for, whatever the capacity: a small level's table is
// small, and stays in cache.
class HashTable {
 public:
  __device__ HashTable(const HashSlot* slots, int64_t num_keys) {
    slots_ = slots;
    shift_ = __clzll(max(2 * num_keys, kMinHashSlots) - 1);
  }

  // A power of two, at least twice the keys.
  __device__ int64_t num_slots() const { return int64_t{1} << (64 - shift_); }
  __device__ int64_t FirstSlot(uint64_t key) const {
    return static_cast<int64_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  __device__ int64_t NextSlot(int64_t slot) const { return (slot + 1) & (num_slots() - 1); }

  // A lookup in two steps, so that a thread may have the first accesses of several keys in flight:
  // Load(FirstSlot(key)), then Find.
  __device__ HashSlot Load(int64_t slot) const {
    const ulonglong2 words = __ldg(reinterpret_cast<const ulonglong2*>(slots_ + slot));
    return {.key = words.x, .row = static_cast<int32_t>(words.y), .unused = 0};
  }
  // The row of the key, -1 where there is none. first: what Load gave.
  __device__ int32_t Find(uint64_t key, HashSlot first) const {
    int64_t slot = FirstSlot(key);
    while (first.key != key) {
      if (first.key == kNoKey) return -1;
      slot = NextSlot(slot);
      first = Load(slot);
    }
    return first.row;
  }

 private:
  const HashSlot* slots_;
  int shift_;  // 64 - log2(slots)
};

// The cell of a place given by its distances from the box's lowest corner; -1 outside.
template <int kDimension>
__device__ int64_t GridCell(const GridBox& box, const FieldInteger<kDimension> (&distance)[kDimension]) {
  bool is_inside = true;
  int64_t cell = 0;
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    is_inside = is_inside && distance[axis] >= 0 && distance[axis] < box.extent[axis];
    cell = cell * box.extent[axis] + distance[axis];
  }
  return is_inside ? box.first_cell + cell : -1;
}

template <int kDimension>
__device__ int64_t GridCell(const GridBox* boxes, uint64_t key) {
  const GridBox& box = boxes[MortonKey<kDimension>::Sample(key)];
  FieldInteger<kDimension> distance[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    distance[axis] =
        static_cast<FieldInteger<kDimension>>(int64_t{FieldOf<kDimension>(key, axis)} - int64_t{box.lowest[axis]});
  }
  return GridCell<kDimension>(box, distance);
}

}  // namespace voxserve::kernels::cuda
