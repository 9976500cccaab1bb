#pragma once

// HashTable looks up keys in a cuda::CoordinateTable, for kernels. Only .cu files include this header.

#include <cstdint>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/hash_slots.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// The least number of slots per key. A warp's look-up takes as long as the longest probe sequence of its keys.
// Measured for a warp that looks up 7 cells of 32 rows of a scan: 57 dependent memory accesses with two slots per key
// and one cell at a time; 8 accesses with four slots per key and all cells at a time.
inline constexpr int64_t kSlotsAKey = 4;

class HashTable {
 public:
  __device__ explicit HashTable(const CoordinateTable& table)
      : numbers_(kSlotsAKey * NumRows(table.capacity, table.num_keys), table.seed), slots_(table.slots) {}

  // Sets found[0, count) to the rows of keys[0, count), or -1 for keys that the table does not have. All keys of a
  // thread are looked up together, so that their memory accesses overlap.
  template <int kKeys>
  __device__ void Find(const uint64_t (&keys)[kKeys], int32_t count, int32_t (&found)[kKeys]) const {
    static_assert(kKeys < 32);
    uint32_t slot[kKeys];
    HashSlot seen[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) slot[i] = numbers_.First(keys[i]);
    for (uint32_t open = (1u << count) - 1; open != 0;) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((open >> i & 1) != 0) seen[i] = Load(slot[i]);
      }
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((open >> i & 1) == 0) continue;
        if (seen[i].key == keys[i] || seen[i].key == kNoKey) {
          found[i] = seen[i].row;  // -1 in an empty slot
          open &= ~(1u << i);
        } else {
          slot[i] = numbers_.Next(slot[i]);
        }
      }
    }
  }

 private:
  __device__ HashSlot Load(uint32_t slot) const {
    const ulonglong2 words = __ldg(reinterpret_cast<const ulonglong2*>(slots_ + slot));
    return {.key = words.x, .row = static_cast<int32_t>(words.y), .unused = 0};
  }

  HashSlots numbers_;
  const HashSlot* slots_;
};

}  // namespace voxserve::kernels::cuda
