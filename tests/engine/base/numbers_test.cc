#include "engine/base/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

namespace voxserve::numbers_test {
namespace {

TEST(NumbersTest, IntegersAreDigitsAlone) {
  int32_t value = -1;
  EXPECT_TRUE(ParseInteger("0", &value));
  EXPECT_EQ(value, 0);
  EXPECT_TRUE(ParseInteger("-2147483648", &value));
  EXPECT_EQ(value, INT32_MIN);
  EXPECT_TRUE(ParseInteger("007", &value));
  EXPECT_EQ(value, 7);
  for (const std::string text : {"", "-", "--1", "+1", " 1", "1 ", "\t1", "1\n", "1_000", "1,000", "1.0", "1e3", "0x10",
                                 "\xEF\xBC\x91", "2147483648"}) {
    EXPECT_FALSE(ParseInteger(text, &value)) << "'" << text << "'";
  }
  EXPECT_FALSE(ParseInteger(std::string("1\0", 2), &value));
  uint64_t large = 0;
  EXPECT_TRUE(ParseInteger("18446744073709551615", &large));
  EXPECT_EQ(large, UINT64_MAX);
  EXPECT_FALSE(ParseInteger("-1", &large));
}

TEST(NumbersTest, RealNumbersAreDecimal) {
  double value = -1;
  for (const auto& [text, wanted] :
       {std::pair("0", 0.0), {"-0.5", -0.5}, {".25", 0.25}, {"1e-3", 1e-3}, {"2E+2", 200.0}}) {
    EXPECT_TRUE(ParseReal(text, &value)) << text;
    EXPECT_EQ(value, wanted);
  }
  for (const std::string text : {"", "-", ".", "+1", " 1", "1 ", "1\n", "nan", "inf", "-inf", "infinity", "0x1p3",
                                 "1_0", "1,5", "1e", "\xEF\xBC\x91"}) {
    EXPECT_FALSE(ParseReal(text, &value)) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace voxserve::numbers_test
