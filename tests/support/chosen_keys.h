#pragma once

// Makes the coordinates that an attacker would send who knew the seed of the hash tables. The search for each of their
// keys begins at the same slot, so linear probing visits all keys before it. Tests and benchmarks measure what that
// costs.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/coordinates/hash_seed.h"

namespace voxserve::support {

// The seed that the attacker knows. A real process draws a random seed.
inline constexpr kernels::HashSeed kKnownSeed = {.first = 0x9E3779B97F4A7C15u, .second = 0xD1B54A32D192ED03u};

// Returns `count` ascending CoordinateKeys of sample 0 in three dimensions. In a CPU's table of 2^log2_slots slots with
// this seed, the search for each key begins at slot 0.
std::vector<uint64_t> KeysOfOneSlot(const kernels::HashSeed& seed, size_t count, int log2_slots);

// Returns `count` ascending MortonKeys of sample 0 in three dimensions, each in a brick of its own (a brick is a block
// of 64 cells that shares one entry of a GPU's table). In a table of 2^log2_slots slots with this seed, the search for
// each brick begins in the first group of four slots. Tries about 2^(log2_slots - 2) bricks for
// each key, in as many threads as the machine has cores.
std::vector<uint64_t> MortonKeysOfOneSlot(const kernels::HashSeed& seed, size_t count, int log2_slots);

}  // namespace voxserve::support
