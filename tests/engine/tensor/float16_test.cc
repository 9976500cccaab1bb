// Compares the conversions to and from float16 and bfloat16 with the definitions of these formats, value by value: sign
// * 2^e * fraction, computed with std::ldexp in double.

#include "engine/tensor/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace voxserve::float16_test {
namespace {

double DefinitionOf(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1U << mantissa_bits), exponent - bias - mantissa_bits);
}

void ExpectSame(float actual, double expected, uint32_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << bits;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(static_cast<float>(expected))) << bits;
  }
}

TEST(Float16Test, EveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ExpectSame(Float16ToFloat(static_cast<uint16_t>(bits)), DefinitionOf(bits, 5, 10), bits);
  }
}

TEST(Float16Test, EveryValueThereAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(FloatToFloat16(value), bits);
  }
  EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

// Tests values between each two neighbours: the midpoint is rounded to the even neighbour, any other value to the
// nearer one.
TEST(Float16Test, RoundsToNearestTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = Float16ToFloat(bits);
    const float high = bits == 0x7bff ? 65536.0f : Float16ToFloat(bits + 1);
    const float middle = (low + high) / 2;
    EXPECT_EQ(FloatToFloat16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(FloatToFloat16(std::nextafter(middle, low)), bits) << bits;
    EXPECT_EQ(FloatToFloat16(-std::nextafter(middle, high)), 0x8000 | (bits + 1)) << bits;
  }
  EXPECT_EQ(FloatToFloat16(std::numeric_limits<float>::max()), 0x7c00);
}

TEST(Bfloat16Test, EveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    ExpectSame(Bfloat16ToFloat(static_cast<uint16_t>(bits)), DefinitionOf(bits, 8, 7), bits);
  }
}

}  // namespace
}  // namespace voxserve::float16_test
