#include "kernels/coordinates/hash_seed.h"

#include <random>

namespace voxserve::kernels {

HashSeed HashSeed::OfProcess() {
  static const HashSeed seed = [] {
    std::random_device random;
    const auto odd = [&random] { return uint64_t{random()} << 32 | random() | 1; };
    return HashSeed{.first = odd(), .second = odd()};
  }();
  return seed;
}

}  // namespace voxserve::kernels
