#pragma once

// HashSlots computes which slots of a hash table on a GPU a key may use: open addressing with linear probing over a
// power of two of slots, by a hash with a secret seed (hash_seed.h). BrickSlots and HashTable use it. Only .cu files
// include this header.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/coordinates/hash_seed.h"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kMinHashSlots = 16;
inline constexpr int64_t kMaxHashSlots = int64_t{1} << 32;  // slot numbers have 32 bits

// Keys that differ only in their kHashGroupBits low bits are neighbours in space. Their first slots are adjacent, in
// one sector of memory. A warp looks up neighbours together, so this halves the sectors that it reads.
inline constexpr int kHashGroupBits = 2;
static_assert(int64_t{1} << kHashGroupBits <= kMinHashSlots);

// Returns the number of slots of a table that needs at least `wanted` slots.
inline int64_t NumHashSlots(int64_t wanted) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kMinHashSlots, wanted))));
}

// The slots of one table. Kernels compute the number of slots from the number of keys in device memory, which the host
// may not know. A level with few keys then uses few slots, which stay in the cache.
class HashSlots {
 public:
  __device__ HashSlots(int64_t wanted, const HashSeed& seed) : seed_(seed) {
    shift_ = __clzll(max(wanted, kMinHashSlots) - 1);
  }

  // Returns the number of slots: the power of two from `wanted` on, at least kMinHashSlots.
  __device__ int64_t size() const { return int64_t{1} << (64 - shift_); }
  // Returns the slot at which the search for a key begins. Next returns the slot after another.
  __device__ uint32_t First(uint64_t key) const {
    constexpr uint64_t kInGroup = (uint64_t{1} << kHashGroupBits) - 1;
    const uint64_t group = seed_.Hash(key >> kHashGroupBits) >> (shift_ + kHashGroupBits);
    return static_cast<uint32_t>(group << kHashGroupBits | (key & kInGroup));
  }
  __device__ uint32_t Next(uint32_t slot) const { return (slot + 1) & static_cast<uint32_t>(size() - 1); }
  // Writes a new key to the first free slot of its search, and returns the slot's number. keys[slot * stride] is the
  // key of a slot; a free slot has the key `empty`. If the searches of two keys meet, either key may get the earlier
  // slot; look-ups give the same result.
  __device__ uint32_t Take(uint64_t key, uint64_t empty, uint64_t* keys, int64_t stride = 1) const {
    uint32_t slot = First(key);
    while (atomicCAS(reinterpret_cast<unsigned long long*>(keys + slot * stride),
                     static_cast<unsigned long long>(empty), static_cast<unsigned long long>(key)) != empty) {
      slot = Next(slot);
    }
    return slot;
  }

 private:
  HashSeed seed_;
  int shift_;  // 64 - log2(size())
};

}  // namespace voxserve::kernels::cuda
