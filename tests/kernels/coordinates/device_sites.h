#pragma once

// Helpers for tests of the GPU's coordinate kernels: they make random sites, convert CoordinateKeys to sorted
// MortonKeys (the GPU's row order), and copy the keys of a level to device memory. A level is the set of occupied sites
// at one stride.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::fixtures {

using support::Device;
using support::DeviceArray;

inline constexpr int64_t kSlack = 37;  // the number of entries of a Level behind its last site

template <typename T>
std::vector<T> Sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Calls `visit` with a MortonKey of this dimension.
template <typename Visitor>
auto VisitMorton(int32_t dimension, const Visitor& visit) {
  switch (dimension) {
    case 1:
      return visit(MortonKey<1>());
    case 2:
      return visit(MortonKey<2>());
    case 3:
      return visit(MortonKey<3>());
    default:
      return visit(MortonKey<4>());
  }
}

// Converts CoordinateKeys to MortonKeys of the same sites, in ascending order.
inline std::vector<uint64_t> ToMorton(std::vector<uint64_t> keys, int32_t dimension) {
  const CoordinateKey layout(dimension);
  VisitMorton(dimension, [&](auto morton) {
    for (uint64_t& key : keys) key = morton.Pack(layout.Sample(key), layout.Unpack(key));
  });
  return Sorted(keys);
}

// Holds a level's keys and their number on the device. The capacity exceeds the number of keys by kSlack. The unused
// entries repeat the first key, so a kernel that wrongly reads them makes unexpected pairs.
struct Level {
  explicit Level(const std::vector<uint64_t>& morton_keys)
      : host(morton_keys),
        capacity(static_cast<int64_t>(morton_keys.size()) + kSlack),
        keys(Device::kCuda, Padded(morton_keys)),
        count(Device::kCuda, std::vector<int64_t>{static_cast<int64_t>(morton_keys.size())}) {}

  std::vector<uint64_t> host;
  int64_t capacity;
  DeviceArray<uint64_t> keys;
  DeviceArray<int64_t> count;

 private:
  static std::vector<uint64_t> Padded(std::vector<uint64_t> keys) {
    keys.resize(keys.size() + static_cast<size_t>(kSlack), keys.empty() ? 77 : keys.front());
    return keys;
  }
};

// Returns the ascending CoordinateKeys of `count` different random sites. They lie in a box around the origin that is
// `extent` long on each axis.
inline std::vector<uint64_t> RandomSites(int32_t dimension, int32_t num_samples, size_t count, int32_t extent) {
  const CoordinateKey layout(dimension);
  std::mt19937 random(11);
  std::set<uint64_t> keys;
  while (keys.size() < count) {
    Axes site = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension; ++axis) {
      site[axis] = static_cast<int32_t>(random() % static_cast<uint32_t>(extent)) - extent / 2;
    }
    keys.insert(layout.Pack(static_cast<int32_t>(random() % static_cast<uint32_t>(num_samples)), site));
  }
  return {keys.begin(), keys.end()};
}

}  // namespace voxserve::kernels::fixtures
