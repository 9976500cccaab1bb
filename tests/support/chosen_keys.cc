#include "tests/support/chosen_keys.h"

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"

namespace voxserve::support {
namespace {

using kernels::CoordinateKey;
using kernels::HashSeed;
using Morton = kernels::MortonKey<3>;

// Returns the inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the number of correct
// bits.
uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

bool IsInRange(int32_t coordinate) {
  const CoordinateKey layout(3);
  return coordinate >= layout.min_coordinate() && coordinate <= layout.max_coordinate();
}

}  // namespace

std::vector<uint64_t> KeysOfOneSlot(const HashSeed& seed, size_t count, int log2_slots) {
  const CoordinateKey layout(3);
  const uint64_t first = Inverse(seed.first), second = Inverse(seed.second);
  std::mt19937_64 random(5);
  std::set<uint64_t> keys;
  while (keys.size() < count) {
    // The hash function is a bijection: this is the key whose hash has a slot of 0 and random bits below it.
    uint64_t key = (random() >> log2_slots) * second;
    key = (key ^ key >> 32) * first;
    bool is_valid = layout.Sample(key) == 0;
    for (int axis = 0; axis < 3 && is_valid; ++axis) is_valid = IsInRange(layout.Coordinate(key, axis));
    if (is_valid) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

std::vector<uint64_t> MortonKeysOfOneSlot(const HashSeed& seed, size_t count, int log2_slots) {
  // brick_table.cuh: a brick's key is the MortonKey without its lowest 6 bits. hash_slots.cuh: keys that differ in
  // their lowest 2 bits are one group, and a group's hash gives its first slot.
  constexpr int kBrickBits = 6, kGroupBits = 2;
  // A valid group has few bits, and few hashes belong to valid groups. So valid groups are tried, not hashes.
  constexpr uint64_t kNumGroups = uint64_t{1} << (Morton::kBatchShift - kBrickBits - kGroupBits);
  const size_t num_threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::vector<uint64_t>> found(num_threads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      const uint64_t begin = kNumGroups / num_threads * t, end = kNumGroups / num_threads * (t + 1);
      // An odd step visits groups all over the thread's share of space.
      constexpr uint64_t kStep = 1013;
      for (uint64_t group = begin; group < end && found[t].size() < count / num_threads + 1; group += kStep) {
        if (seed.Hash(group) >> (64 - log2_slots + kGroupBits) != 0) continue;
        const uint64_t key = group << (kBrickBits + kGroupBits);
        const kernels::Axes coordinate = Morton::Unpack(key);
        if (std::all_of(coordinate.begin(), coordinate.begin() + 3, IsInRange)) found[t].push_back(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> keys;
  for (const std::vector<uint64_t>& some : found) keys.insert(keys.end(), some.begin(), some.end());
  std::sort(keys.begin(), keys.end());
  keys.resize(count);
  return keys;
}

}  // namespace voxserve::support
