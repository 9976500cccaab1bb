#pragma once

// The slots of a hash table on a GPU: open addressing with linear probing over a power of two of slots, by a hash with
// a secret seed. Only .cu files include this header.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/coordinates/hash_seed.h"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kMinHashSlots = 16;
inline constexpr int64_t kMaxHashSlots = int64_t{1} << 32;  // slot numbers have 32 bits

// Keys that differ only in this many low bits are neighbours in space, and their slots are adjacent in one memory
// sector. A warp looks up neighbours together, so this halves the sectors that it touches.
inline constexpr int kHashGroupBits = 2;
static_assert(int64_t{1} << kHashGroupBits <= kMinHashSlots);

// Returns the number of a table's slots, at least `wanted`.
inline int64_t NumHashSlots(int64_t wanted) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kMinHashSlots, wanted))));
}

// The same on the device, which knows the number of keys. A small level so has a small table, which stays in cache.
class HashSlots {
 public:
  __device__ HashSlots(int64_t wanted, const HashSeed& seed) : seed_(seed) {
    shift_ = __clzll(max(wanted, kMinHashSlots) - 1);
  }

  // Returns a power of two.
  __device__ int64_t size() const { return int64_t{1} << (64 - shift_); }
  __device__ uint32_t First(uint64_t key) const {
    constexpr uint64_t kInGroup = (uint64_t{1} << kHashGroupBits) - 1;
    const uint64_t group = seed_.Hash(key >> kHashGroupBits) >> (shift_ + kHashGroupBits);
    return static_cast<uint32_t>(group << kHashGroupBits | (key & kInGroup));
  }
  __device__ uint32_t Next(uint32_t slot) const { return (slot + 1) & static_cast<uint32_t>(size() - 1); }
  // Takes an empty slot of keys[0, size()) for a new key, and returns it. Two colliding keys may take their slots in
  // either order; look-ups give the same result.
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
