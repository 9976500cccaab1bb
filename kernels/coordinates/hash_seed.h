#pragma once

// HashSeed is the secret of the hash tables of coordinates.
//
// Clients choose coordinates. With a hash function that they know, they could choose coordinates whose keys all begin
// at one slot: linear probing then takes a time that grows with the square of their number. So the multipliers are
// random, drawn once per process, and no answer tells them. Results do not depend on them: look-ups find the same rows
// wherever the keys lie (Crosby and Wallach, Denial of Service via Algorithmic Complexity Attacks, USENIX Security
// 2003).
//
// Any thread, host and device.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct HashSeed {
  // Both are odd, so that every step of Hash is a bijection.
  uint64_t first = 1;
  uint64_t second = 1;

  // Returns the seed of this process, which its first call draws from the system's random numbers.
  static HashSeed OfProcess();

  // Returns 64 bits, the upper ones of which are the best mixed. One product alone would keep the keys of a straight
  // line in a regular pattern; the shift between two products breaks it.
  constexpr uint64_t Hash(uint64_t key) const {
    key *= first;
    return (key ^ key >> 32) * second;
  }
};
static_assert(std::is_trivially_copyable_v<HashSeed>);

}  // namespace voxserve::kernels
