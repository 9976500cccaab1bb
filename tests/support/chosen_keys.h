#pragma once

// Coordinates that an attacker would send who knew the seed of the hash tables: all of their keys begin at slot 0, so
// linear probing walks over all of them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/coordinates/hash_seed.h"

namespace voxserve::support {

// A seed that the attacker knows. A process draws another one.
inline constexpr kernels::HashSeed kKnownSeed = {.first = 0x9E3779B97F4A7C15u, .second = 0xD1B54A32D192ED03u};

// Returns `count` ascending CoordinateKeys of sample 0 in three dimensions. On the CPU, each begins at slot 0 of
// 2^log2_slots under the seed.
std::vector<uint64_t> KeysOfOneSlot(const kernels::HashSeed& seed, size_t count, int log2_slots);

// Returns `count` ascending MortonKeys of sample 0 in three dimensions, each in a brick of its own. On a GPU, each
// brick begins in the first group of 2^log2_slots slots under the seed. Tries 65,000 times as many keys in as many
// threads as the machine has cores.
std::vector<uint64_t> MortonKeysOfOneSlot(const kernels::HashSeed& seed, size_t count, int log2_slots);

}  // namespace voxserve::support
