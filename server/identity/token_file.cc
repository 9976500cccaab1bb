#include "server/identity/token_file.h"

#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/numbers.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr size_t kMaxProblems = 5;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 4096;
constexpr int kMaxPriority = 1'000'000;
constexpr double kMinShare = 0.01;
constexpr double kMaxShare = 1000;

// RFC 6750, section 2.1: the characters of a bearer token, without its "=" rule.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("-._~+/=").find(c) != std::string::npos;
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("-._@").find(c) != std::string::npos;
}

// Returns the beginning of a text of the file, for an error. The text may be a token that was put there by mistake, so
// fewer characters are shown than the shortest token has.
std::string Shown(absl::string_view text) {
  constexpr size_t kMost = kMinTokenBytes - 4;
  const std::string escaped = absl::CHexEscape(text.substr(0, kMost));
  return absl::StrCat("\"", escaped, text.size() > kMost ? "..." : "", "\"");
}

absl::Status Bad(const std::string& why) { return absl::InvalidArgumentError(why); }

absl::StatusOr<std::string> ParseName(absl::string_view text) {
  if (text.size() > kMaxNameBytes || !std::all_of(text.begin(), text.end(), IsNameCharacter)) {
    return Bad(absl::StrCat("the name ", Shown(text), " must have at most ", kMaxNameBytes,
                            " letters, digits and characters of -._@"));
  }
  return std::string(text);
}

absl::StatusOr<Sha256Digest> ParseDigest(absl::string_view text) {
  Sha256Digest digest = {};
  const bool is_hex = std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (text.size() != 2 * digest.size() || !is_hex) {
    return Bad(absl::StrCat("the second column must be 64 hexadecimal digits, the SHA-256 of the token; it has ",
                            text.size(), " characters"));
  }
  const std::string bytes = absl::HexStringToBytes(text);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  if (digest == Sha256Of("") || digest == Sha256Of("\n")) return Bad("the SHA-256 is that of an empty token");
  return digest;
}

absl::Status ParseScopes(absl::string_view text, Token* token) {
  for (absl::string_view scope : absl::StrSplit(text, ',')) {
    if (scope == "admin") {
      token->is_admin = true;
    } else if (scope == "metrics") {
      token->reads_metrics = true;
    } else if (absl::ConsumePrefix(&scope, "infer:")) {
      if (scope.empty()) return Bad("the scope \"infer:\" names no model; infer:* is all of them");
      token->model_globs.emplace_back(scope);
    } else {
      return Bad(absl::StrCat("unknown scope ", Shown(scope), "; scopes are infer:MODEL, admin and metrics"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseSetting(absl::string_view text, Token* token) {
  if (absl::ConsumePrefix(&text, "priority=")) {
    if (ParseInteger(text, &token->highest_priority) && token->highest_priority >= 0 &&
        token->highest_priority <= kMaxPriority) {
      return absl::OkStatus();
    }
    return Bad(absl::StrCat("priority=", Shown(text), " must be a number from 0 to ", kMaxPriority));
  }
  if (absl::ConsumePrefix(&text, "share=")) {
    // The condition also refuses NaN.
    if (ParseReal(text, &token->share) && token->share >= kMinShare && token->share <= kMaxShare) {
      return absl::OkStatus();
    }
    return Bad(absl::StrCat("share=", Shown(text), " must be a number from ", kMinShare, " to ", kMaxShare));
  }
  return Bad(absl::StrCat("unknown word ", Shown(text), " after the scopes; known are priority=N and share=X"));
}

absl::StatusOr<Token> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() < 3) return Bad("a line is a name, the SHA-256 of a token, and scopes");
  Token token;
  ASSIGN_OR_RETURN(token.name, ParseName(words[0]));
  ASSIGN_OR_RETURN(token.digest, ParseDigest(words[1]));
  RETURN_IF_ERROR(ParseScopes(words[2], &token));
  for (size_t i = 3; i < words.size(); ++i) RETURN_IF_ERROR(ParseSetting(words[i], &token));
  return token;
}

}  // namespace

bool Token::FitsModel(std::string_view model) const {
  return std::any_of(model_globs.begin(), model_globs.end(),
                     [model](const std::string& glob) { return FitsGlob(glob, model); });
}

bool FitsGlob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  // After a mismatch the last * matches one character more: the text from taken_to on is then compared again with the
  // pattern after that *.
  std::optional<size_t> star;
  size_t taken_to = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken_to = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star.has_value()) {
      p = *star + 1;
      t = ++taken_to;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

absl::StatusOr<TokenList> ParseTokens(const std::string& path, std::string_view text) {
  TokenList tokens;
  std::vector<std::string> problems;
  std::map<std::string, int> line_of_name;
  std::map<Sha256Digest, int> line_of_digest;
  int number = 0;
  const std::string copy(text);
  for (absl::string_view line : absl::StrSplit(copy, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    absl::StatusOr<Token> token = ParseLine(line);
    absl::Status status = token.status();
    if (status.ok()) {
      const auto [name, is_new_name] = line_of_name.emplace(token->name, number);
      const auto [digest, is_new_digest] = line_of_digest.emplace(token->digest, number);
      if (!is_new_name) {
        status = Bad(absl::StrCat("the name ", token->name, " is that of line ", name->second));
      } else if (!is_new_digest) {
        status = Bad(absl::StrCat("the token is that of line ", digest->second));
      }
    }
    if (!status.ok()) {
      problems.push_back(absl::StrCat("line ", number, ": ", status.message()));
      if (problems.size() == kMaxProblems) break;
      continue;
    }
    tokens.push_back(std::make_shared<const Token>(*std::move(token)));
  }
  if (!problems.empty()) return Bad(absl::StrCat("--auth_tokens=", path, " ", absl::StrJoin(problems, "; ")));
  if (tokens.empty()) return Bad(absl::StrCat("--auth_tokens=", path, " has no token: nobody could do anything"));
  return tokens;
}

Sha256Digest Sha256Of(std::string_view text) {
  Sha256Digest digest = {};
  // EVP_Digest fails only if OpenSSL has no SHA-256. The digest is then all zeros, which no token's line has.
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  return digest;
}

absl::StatusOr<std::string> HashToken(std::string_view token) {
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return Bad(absl::StrCat("the token has ", token.size(), " characters, must have ", kMinTokenBytes, " to ",
                            kMaxTokenBytes, "; make one with: openssl rand -hex 32"));
  }
  if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return Bad("the token must be one line of letters, digits and characters of -._~+/=");
  }
  const Sha256Digest digest = Sha256Of(token);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

}  // namespace voxserve
