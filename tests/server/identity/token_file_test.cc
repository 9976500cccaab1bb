// Tests ParseTokens on good and bad lines of a file of --auth_tokens, and the functions FitsGlob and HashToken.

#include "server/identity/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace voxserve::token_file_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// The SHA-256 of "abc": FIPS 180-2, appendix B.1.
constexpr char kHashOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kOtherHash[] = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AE";

std::string Line(const std::string& name, const std::string& rest, const std::string& hash = kHashOfAbc) {
  return absl::StrCat(name, " ", hash, " ", rest, "\n");
}

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<TokenList> tokens = ParseTokens("/etc/tokens", text);
  EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument) << text;
  const std::string message(tokens.status().message());
  EXPECT_THAT(message, HasSubstr("--auth_tokens=/etc/tokens"));
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << "one line";
  return message;
}

TEST(TokenFileTest, ReadsEveryColumn) {
  const absl::StatusOr<TokenList> tokens = ParseTokens(
      "f", absl::StrCat("# comment\n\n  \t\r\n", Line("truck-7", "infer:mink*,infer:a?,metrics priority=2 share=0.5"),
                        "\toperator@x.y\t", kOtherHash, "\tadmin  \r\n"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 2);
  const Token& truck = *(*tokens)[0];
  EXPECT_EQ(truck.name, "truck-7");
  EXPECT_EQ(truck.digest, Sha256Of("abc"));
  EXPECT_THAT(truck.model_globs, ElementsAre("mink*", "a?"));
  EXPECT_FALSE(truck.is_admin);
  EXPECT_TRUE(truck.reads_metrics);
  EXPECT_EQ(truck.highest_priority, 2);
  EXPECT_EQ(truck.share, 0.5);
  const Token& rights = *(*tokens)[1];
  EXPECT_EQ(rights.name, "operator@x.y");
  EXPECT_TRUE(rights.is_admin);
  EXPECT_FALSE(rights.reads_metrics);
  EXPECT_THAT(rights.model_globs, ElementsAre());
  EXPECT_EQ(rights.highest_priority, 0);
  EXPECT_EQ(rights.share, 1);
}

TEST(TokenFileTest, TakesTheHighestPriority) {
  EXPECT_TRUE(ParseTokens("f", Line("name", "admin priority=1000000")).ok());
}

TEST(TokenFileTest, NamesTheLineAndWhatIsWrongWithIt) {
  const std::string good = Line("good", "admin");
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {"name\n", "line 2: a line is a name, the SHA-256 of a token, and scopes"},
           {absl::StrCat("name ", kOtherHash, "\n"), "line 2: a line is"},
           {Line("na/me", "admin", kOtherHash), "line 2: the name \"na/me\" must have"},
           {Line(std::string(65, 'n'), "admin", kOtherHash), "at most 64"},
           {Line("name", "admin", "abc"), "64 hexadecimal digits, the SHA-256 of the token; it has 3 characters"},
           {Line("name", "admin", std::string(63, 'a') + "g"), "64 hexadecimal digits"},
           {Line("name", "admin", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "empty token"},
           {Line("name", "admn", kOtherHash), "unknown scope \"admn\"; scopes are infer:MODEL, admin and metrics"},
           {Line("name", "admin,", kOtherHash), "unknown scope \"\""},
           {Line("name", "infer:", kOtherHash), "names no model"},
           {Line("name", "admin priority=-1", kOtherHash), "priority=\"-1\" must be a number from 0"},
           {Line("name", "admin priority=", kOtherHash), "priority=\"\""},
           {Line("name", "admin priority=1000001", kOtherHash),
            "priority=\"1000001\" must be a number from 0 to 1000000"},
           {Line("name", "admin priority=+1", kOtherHash), "priority=\"+1\" must be a number from 0"},
           {Line("name", "admin share=+1", kOtherHash), "share=\"+1\" must be a number from 0.01"},
           {Line("name", "admin share=inf", kOtherHash), "share=\"inf\""},
           {Line("name", "admin share=0", kOtherHash), "share=\"0\" must be a number from 0.01 to 1000"},
           {Line("name", "admin share=nan", kOtherHash), "share=\"nan\""},
           {Line("name", "admin share=1001", kOtherHash), "share=\"1001\""},
           {Line("name", "admin, metrics", kOtherHash), "unknown scope \"\""},
           {Line("name", "admin metrics", kOtherHash), "unknown word \"metrics\" after the scopes"},
           {Line("good", "admin", kOtherHash), "line 2: the name good is that of line 1"},
           {Line("name", "admin"), "line 2: the token is that of line 1"}}) {
    EXPECT_THAT(ErrorOf(good + line), HasSubstr(problem));
  }
}

TEST(TokenFileTest, ListsTheFirstBadLines) {
  std::string text;
  for (int i = 0; i < 9; ++i) absl::StrAppend(&text, "bad\n");
  EXPECT_THAT(ErrorOf(text), AllOf(HasSubstr("line 1: "), HasSubstr("; line 5: "), Not(HasSubstr("line 6"))));
}

TEST(TokenFileTest, ASecretThatStandsThereByMistakeIsNotRepeated) {
  const std::string secret = "0123456789abcdef0123456789abcdef-and-more";
  EXPECT_THAT(ErrorOf(Line("name", "admin", secret)), Not(HasSubstr("0123456789")));
  // A token of the least length (16 characters) stands in place of a scope or a setting. The error shows only its
  // beginning.
  EXPECT_THAT(ErrorOf(Line("name", "0123456789abcdef")), Not(HasSubstr("cdef")));
  EXPECT_THAT(ErrorOf(Line("name", "admin 0123456789abcdef")), Not(HasSubstr("cdef")));
}

TEST(TokenFileTest, AFileWithoutTokensIsRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("has no token"));
  EXPECT_THAT(ErrorOf("# name hash admin\n"), HasSubstr("has no token"));
}

TEST(TokenFileTest, GlobsFitWholeNames) {
  for (const auto& [glob, text, fits] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"*", "", true},
                                                               {"*", "minkunet", true},
                                                               {"minkunet", "minkunet", true},
                                                               {"minkunet", "minkunet2", false},
                                                               {"minkunet", "Minkunet", false},
                                                               {"mink*", "mink", true},
                                                               {"*net", "minkunet", true},
                                                               {"*net", "netto", false},
                                                               {"m?nk*t", "minkunet", true},
                                                               {"?", "", false},
                                                               {"a*b*c", "aXbXbXc", true},
                                                               {"a*b*c", "aXbXbX", false},
                                                               {"", "", true},
                                                               {"", "a", false},
                                                               {"a.c", "abc", false},
                                                               {"[ab]", "a", false}}) {
    EXPECT_EQ(FitsGlob(glob, text), fits) << glob << " " << text;
  }
  // The time must be quadratic in the lengths at most. A search with backtracking to every * would be exponential.
  EXPECT_FALSE(FitsGlob("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(20'000, 'a')));
}

TEST(TokenFileTest, HashesATokenAsALineHasIt) {
  EXPECT_EQ(*HashToken("0123456789abcdef"), "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f");
  EXPECT_THAT(HashToken("short").status().message(), HasSubstr("5 characters, must have 16 to 4096"));
  EXPECT_THAT(HashToken("").status().message(), HasSubstr("openssl rand -hex 32"));
  EXPECT_THAT(HashToken("two words and more words").status().message(), HasSubstr("one line of letters"));
  EXPECT_THAT(HashToken("0123456789abcde\n").status().message(), HasSubstr("one line"));
}

}  // namespace
}  // namespace voxserve::token_file_test
