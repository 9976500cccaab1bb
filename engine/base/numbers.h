#pragma once

// Strict parsers of numbers that others wrote: in flags, files, requests and headers. Those of Abseil also accept white
// space around the number, a plus sign, and for real numbers "nan" and "inf".

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace voxserve {

// Parses a decimal integer: digits, for a signed type perhaps behind a minus sign. Returns false if the text is
// anything else, or if the type cannot hold the number.
template <typename Int>
bool ParseInteger(absl::string_view text, Int* value) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "-");
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  return std::all_of(digits.begin(), digits.end(), is_digit) && absl::SimpleAtoi(text, value);
}

// Parses a decimal number such as 12, -0.5 and 1e-3. Returns false if the text is anything else. A number beyond
// double's range becomes an infinity.
inline bool ParseReal(absl::string_view text, double* value) {
  const bool has_only_its_characters = text.find_first_not_of("0123456789.eE+-") == absl::string_view::npos;
  return has_only_its_characters && !absl::StartsWith(text, "+") && absl::SimpleAtod(text, value);
}

}  // namespace voxserve
