#pragma once

// These functions convert 16-bit floats to float32 exactly: IEEE 754 binary16 (with subnormals, infinities and NaN) and
// bfloat16. One function converts float32 to binary16.

#include <bit>
#include <cstdint>

namespace voxserve {

inline float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact: 10 bits
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even: magnitudes of 65520 and more become infinite, those up to 2^-25 become 0.
inline uint16_t FloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (magnitude != magnitude) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  // The sum's last bit is worth what binary16's last bit is worth here, so the addition rounds.
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000);
  const uint32_t shifted = std::bit_cast<uint32_t>(magnitude) - (112u << 23);
  return sign | static_cast<uint16_t>((shifted + 0xfff + (shifted >> 13 & 1)) >> 13);
}

inline float Bfloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace voxserve
