#pragma once

// HashSeed is a secret parameter of the hash tables that find coordinates. It protects them against attacks on a hash
// table's running time (Crosby and Wallach, Denial of Service via Algorithmic Complexity Attacks, USENIX Security
// 2003).
//
// Clients choose the coordinates. A client that knew the hash function could choose coordinates whose keys all begin at
// one slot; linear probing then takes a time that grows with the square of the number of keys. To prevent this, the
// hash function's two multipliers are random. They are drawn once per process, and no answer depends on them: look-ups
// find the same rows in whatever slots the keys are.
//
// Any thread may use a HashSeed, on the host and on a GPU.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct HashSeed {
  // The multipliers of Hash. Both are odd, so that every step of Hash is a bijection.
  uint64_t first = 1;
  uint64_t second = 1;

  // Returns the seed of this process, which its first call draws from the system's random numbers.
  static HashSeed OfProcess();

  // Returns a hash of 64 bits. Its upper bits are mixed best, so tables use these. One multiplication alone would turn
  // the keys of a straight line into a regular pattern; the shift between the two multiplications breaks the pattern.
  constexpr uint64_t Hash(uint64_t key) const {
    key *= first;
    return (key ^ key >> 32) * second;
  }
};
static_assert(std::is_trivially_copyable_v<HashSeed>);

}  // namespace voxserve::kernels
