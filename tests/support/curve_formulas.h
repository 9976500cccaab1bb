#pragma once

// The oracle for orders of sites along space-filling curves. It makes codes bit by bit from Pointcept's definition, and
// shares no code with the kernels.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace voxserve::support {

using CurveSite = std::array<int32_t, 3>;

// Returns a site's code on Morton's curve, or on Hilbert's of `depth` bits an axis.
inline uint64_t DefinedCurveCode(bool is_hilbert, bool is_transposed, const CurveSite& site, int depth) {
  constexpr int kBits = 18;  // of any coordinate
  uint32_t axes[3] = {static_cast<uint32_t>(site[is_transposed ? 1 : 0]),
                      static_cast<uint32_t>(site[is_transposed ? 0 : 1]), static_cast<uint32_t>(site[2])};
  for (int bit = is_hilbert ? depth - 1 : -1; bit >= 0; --bit) {
    for (uint32_t& axis : axes) {
      for (int below = 0; below < bit; ++below) {
        const uint32_t one = uint32_t{1} << below;
        const bool differ = (axes[0] & one) != (axis & one);
        if (axis >> bit & 1) {
          axes[0] ^= one;
        } else if (differ) {
          axes[0] ^= one;
          axis ^= one;
        }
      }
    }
  }
  uint64_t code = 0;
  bool parity = false;
  for (int bit = kBits - 1; bit >= 0; --bit) {
    for (const uint32_t axis : axes) {
      const bool here = axis >> bit & 1;
      parity = parity != here;
      code = code << 1 | static_cast<uint64_t>(is_hilbert ? parity : here);
    }
  }
  return code;
}

// Returns the bit length of the sites' largest coordinate + 1, less `halvings`, at least 1.
inline int DefinedCurveDepth(const std::vector<CurveSite>& sites, int halvings) {
  int64_t largest = 0;
  for (const CurveSite& site : sites) largest = std::max<int64_t>({largest, site[0], site[1], site[2]});
  int bits = 0;
  while (largest + 1 >= int64_t{1} << bits) ++bits;
  return std::max(bits - halvings, 1);
}

}  // namespace voxserve::support
