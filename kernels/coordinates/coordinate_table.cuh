#pragma once

// Lookups in a coordinate table, for kernels. Included by .cu files alone.

#include <cstdint>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/sample_bounds.cuh"

namespace voxserve::kernels::cuda {

// Slots a key, at least. A warp's lookup takes as long as its longest chain: 57 accesses one after the other for 32
// rows x 7 cells of a scan at two slots a key, looked up cell by cell; 8 at four, side by side.
inline constexpr int64_t kSlotsAKey = 4;
inline constexpr int64_t kMinHashSlots = 16;
inline constexpr int64_t kMaxHashSlots = int64_t{1} << 32;  // numbered with 32 bits

// Keys that differ in so many bits at the bottom alone lie next to each other, in one line of memory: neighbours in
// space, which the lookups of a warp ask for together. It halves the sectors that they touch.
inline constexpr int kHashGroupBits = 2;
static_assert(int64_t{1} << kHashGroupBits <= kMinHashSlots);

// Open addressing over the slots that the number of keys asks for, whatever the capacity: a small level's table is
// small, and stays in cache.
class HashTable {
 public:
  __device__ HashTable(const HashSlot* slots, int64_t num_keys) {
    slots_ = slots;
    shift_ = __clzll(max(kSlotsAKey * num_keys, kMinHashSlots) - 1);
  }

  // A power of two.
  __device__ int64_t num_slots() const { return int64_t{1} << (64 - shift_); }
  __device__ uint32_t FirstSlot(uint64_t key) const {
    constexpr uint64_t kInGroup = (uint64_t{1} << kHashGroupBits) - 1;
    const uint64_t group = (key >> kHashGroupBits) * 0x9E3779B97F4A7C15u >> (shift_ + kHashGroupBits);
    return static_cast<uint32_t>(group << kHashGroupBits | (key & kInGroup));
  }
  __device__ uint32_t NextSlot(uint32_t slot) const { return (slot + 1) & static_cast<uint32_t>(num_slots() - 1); }

  // found[0, count) = the rows of keys, -1 where there is none. All of a thread's keys are looked up side by side, so
  // that their accesses are in flight together.
  template <int kKeys>
  __device__ void Find(const uint64_t (&keys)[kKeys], int32_t count, int32_t (&found)[kKeys]) const {
    static_assert(kKeys < 32);
    uint32_t slot[kKeys];
    HashSlot seen[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) slot[i] = FirstSlot(keys[i]);
    for (uint32_t open = (1u << count) - 1; open != 0;) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((open >> i & 1) != 0) seen[i] = Load(slot[i]);
      }
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((open >> i & 1) == 0) continue;
        if (seen[i].key == keys[i] || seen[i].key == kNoKey) {
          found[i] = seen[i].row;  // an empty slot's is -1
          open &= ~(1u << i);
        } else {
          slot[i] = NextSlot(slot[i]);
        }
      }
    }
  }

 private:
  __device__ HashSlot Load(uint32_t slot) const {
    const ulonglong2 words = __ldg(reinterpret_cast<const ulonglong2*>(slots_ + slot));
    return {.key = words.x, .row = static_cast<int32_t>(words.y), .unused = 0};
  }

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
