// Tests which bytes FirstUtf8Character takes for a character. server/codec/message_parser_test.cc compares every
// beginning of a text with protobuf.

#include "engine/base/utf8.h"

#include <optional>
#include <string>
#include <tuple>

#include "gtest/gtest.h"

namespace voxserve::utf8_test {
namespace {

TEST(Utf8Test, ACharacterHasOneToFourBytes) {
  for (const auto& [text, code_point, size] : {std::tuple{"a\xff", 0x61u, size_t{1}},
                                               {"\u00e9\xff", 0xE9u, 2},
                                               {"\u20ac\xff", 0x20ACu, 3},
                                               {"\U0001f697\xff", 0x1F697u, 4}}) {
    const std::optional<Utf8Character> character = FirstUtf8Character(text);
    ASSERT_TRUE(character.has_value()) << code_point;
    EXPECT_EQ(character->code_point, code_point);
    EXPECT_EQ(character->size, size);
  }
  EXPECT_EQ(FirstUtf8Character(std::string(1, '\0'))->size, 1u);
}

TEST(Utf8Test, TheFirstAndLastCharacterOfEachSizeAreAccepted) {
  for (const char* text : {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    const std::optional<Utf8Character> character = FirstUtf8Character(text);
    ASSERT_TRUE(character.has_value()) << testing::PrintToString(text);
    EXPECT_EQ(character->size, std::string(text).size());
  }
}

TEST(Utf8Test, OtherBytesAreNoCharacter) {
  for (const char* text : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xc3z",
                           "\xe2\x82", "\xe2\x82z", "\xf0\x9f\x9a", "\xf0\x9f\x9az"}) {
    EXPECT_FALSE(FirstUtf8Character(text).has_value()) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace voxserve::utf8_test
