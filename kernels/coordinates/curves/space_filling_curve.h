#pragma once

// The codes of a site on a space-filling curve: neighbours on the curve are neighbours in space.
//
// z is G. M. Morton's order (morton_key.h). Hilbert's curve is J. Skilling's ("Programming the Hilbert curve", AIP
// Conference Proceedings 707, 2004), numbered as Pointcept's serialization/hilbert.py does. A transposed curve is the
// curve of (y, x, z).
//
// Pure functions, any thread, host and device.

#include <cstdint>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/morton_key.h"

namespace voxserve::kernels {

enum class Curve { kZ, kZTransposed, kHilbert, kHilbertTransposed };

constexpr bool IsHilbert(Curve curve) { return curve == Curve::kHilbert || curve == Curve::kHilbertTransposed; }

inline constexpr int kMaxCurveDepth = MortonKey<3>::kAxisBits;  // bits an axis: every coordinate of a key has a code

// Returns the code of Hilbert's curve with `depth` bits an axis, 1 to kMaxCurveDepth. Coordinates are 0 to 2^depth - 1.
// Beyond that the curve is no longer Hilbert's, but different coordinates still have different codes. (A padded
// convolution can make a site beyond those of a halved grid.)
constexpr uint64_t HilbertCode(uint32_t x, uint32_t y, uint32_t z, int depth) {
  uint32_t axes[3] = {x, y, z};
  for (int bit = depth - 1; bit >= 0; --bit) {
    const uint32_t below = (uint32_t{1} << bit) - 1;
    for (uint32_t& axis : axes) {
      if (axis >> bit & 1) {
        axes[0] ^= below;
      } else {
        const uint32_t exchanged = (axes[0] ^ axis) & below;
        axes[0] ^= exchanged;
        axis ^= exchanged;
      }
    }
  }
  uint64_t code =
      MortonKey<3>::Spread(axes[0]) << 2 | MortonKey<3>::Spread(axes[1]) << 1 | MortonKey<3>::Spread(axes[2]);
  for (int shift = 1; shift < 3 * kMaxCurveDepth; shift *= 2) code ^= code >> shift;  // the running xor from the top
  return code;
}

// Returns a site's code. Its coordinates are not negative. depth: for Hilbert's curves, as above.
constexpr uint64_t CurveCode(Curve curve, const Axes& site, int depth) {
  const bool is_transposed = curve == Curve::kZTransposed || curve == Curve::kHilbertTransposed;
  const auto x = static_cast<uint32_t>(site[is_transposed ? 1 : 0]);
  const auto y = static_cast<uint32_t>(site[is_transposed ? 0 : 1]);
  const auto z = static_cast<uint32_t>(site[2]);
  if (IsHilbert(curve)) return HilbertCode(x, y, z, depth);
  return MortonKey<3>::Spread(x) << 2 | MortonKey<3>::Spread(y) << 1 | MortonKey<3>::Spread(z);
}

}  // namespace voxserve::kernels
