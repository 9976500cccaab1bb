// Tests that CutAtCharacter shortens UTF-8 text to a number of bytes without cutting a character.

#include "engine/base/cut_text.h"

#include <string>

#include "gtest/gtest.h"

namespace voxserve::cut_text_test {
namespace {

TEST(CutTextTest, AShortTextStaysWhole) {
  EXPECT_EQ(CutAtCharacter("", 0), "");
  EXPECT_EQ(CutAtCharacter("", 5), "");
  EXPECT_EQ(CutAtCharacter("Straße", 7), "Straße");
  EXPECT_EQ(CutAtCharacter("Straße", 100), "Straße");
}

TEST(CutTextTest, NoCharacterIsCut) {
  // The text has characters of 1, 2, 3 and 4 bytes. ends[n] is where the text must be cut to have at most n bytes.
  const std::string text = "a\u00e9\u20ac\U0001f697b";
  const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
  ASSERT_EQ(text.size(), 11u);
  for (size_t max_bytes = 0; max_bytes <= text.size(); ++max_bytes) {
    EXPECT_EQ(CutAtCharacter(text, max_bytes), text.substr(0, ends[max_bytes])) << max_bytes;
  }
}

TEST(CutTextTest, BytesThatAreNoCharactersAreCutAsTheyCome) {
  const std::string following(40, '\x80');
  EXPECT_EQ(CutAtCharacter(following, 32), following.substr(0, 32));
  EXPECT_EQ(CutAtCharacter(following, 0), "");
}

}  // namespace
}  // namespace voxserve::cut_text_test
