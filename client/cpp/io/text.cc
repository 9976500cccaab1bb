#include "client/cpp/io/text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/cut_text.h"
#include "engine/base/numbers.h"

namespace voxserve::client {
namespace {

template <typename T>
bool Append(double value, std::string* packed) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    if (!(value >= static_cast<double>(std::numeric_limits<T>::min()) &&
          value <= static_cast<double>(std::numeric_limits<T>::max()) && value == std::floor(value))) {
      return false;
    }
  } else if (std::isfinite(value) && std::abs(value) > static_cast<double>(std::numeric_limits<T>::max())) {
    return false;
  }
  const T converted = static_cast<T>(value);
  packed->append(reinterpret_cast<const char*>(&converted), sizeof(T));
  return true;
}

bool AppendValueAs(PointFieldType type, double value, std::string* packed) {
  if (type == v1::POINT_FIELD_TYPE_UNSPECIFIED) return true;  // a skipped column
  return VisitPointFieldType(type, [&](auto as) {
    using T = decltype(as);
    if constexpr (std::is_same_v<T, Float16Bits>) {
      return true;  // text files have no such column
    } else {
      return Append<T>(value, packed);
    }
  });
}

// Returns true if the rest of a NaN's text is nothing, or letters and digits in brackets.
bool IsNanTail(absl::string_view tail) {
  if (tail.empty()) return true;
  if (!absl::ConsumePrefix(&tail, "(") || !absl::ConsumeSuffix(&tail, ")")) return false;
  return std::all_of(tail.begin(), tail.end(), [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// Splits a line into words. For a list it keeps only the first word, the number of values. Returns INVALID_ARGUMENT,
// without the line's number, if the line ends within a list.
absl::Status SplitPoint(absl::string_view line, const std::vector<AsciiColumn>& columns,
                        std::vector<absl::string_view>* words) {
  words->clear();
  uint64_t to_drop = 0;
  for (const absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    if (to_drop > 0) {
      --to_drop;
      continue;
    }
    if (words->size() < columns.size() && columns[words->size()].is_list && !ParseInteger(word, &to_drop)) {
      return absl::InvalidArgumentError(absl::StrCat("'", Shown(word), "' is not a list's number of values"));
    }
    words->push_back(word);
  }
  if (to_drop > 0) return absl::InvalidArgumentError(absl::StrCat("a list lacks ", to_drop, " of its values"));
  return absl::OkStatus();
}

// Returns INVALID_ARGUMENT if more than max_lines lines follow that are not blank.
absl::Status CheckEnd(uint64_t num_points, uint64_t max_lines, LineReader* lines) {
  while (const std::optional<absl::string_view> line = lines->Next()) {
    if (line->find_first_not_of(" \t") == absl::string_view::npos || max_lines-- > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("the header promises ", num_points,
                                                   " points, but more follow in line ", lines->num_lines(),
                                                   "; the header's count is wrong, or two files were joined"));
  }
  return absl::OkStatus();
}

}  // namespace

bool ParseNumber(absl::string_view word, double* value) {
  if (absl::SimpleAtod(word, value)) return true;
  const bool is_negative = absl::ConsumePrefix(&word, "-");
  if (!is_negative) absl::ConsumePrefix(&word, "+");
  const std::string lower = absl::AsciiStrToLower(word);
  absl::string_view rest = lower;
  if (absl::ConsumePrefix(&rest, "1.#")) {
    while (absl::ConsumeSuffix(&rest, "0")) continue;
    if (rest != "ind" && rest != "qnan" && rest != "snan" && rest != "inf") return false;
    *value = rest == "inf" ? HUGE_VAL : std::nan("");
  } else if (absl::ConsumePrefix(&rest, "nan") && IsNanTail(rest)) {
    *value = std::nan("");
  } else {
    return false;
  }
  if (is_negative) *value = -*value;
  return true;
}

absl::string_view Shown(absl::string_view text) { return CutAtCharacter(text, 32); }

std::optional<absl::string_view> LineReader::Next() {
  if (position_ >= text_.size()) return std::nullopt;
  const size_t end = text_.find('\n', position_);
  absl::string_view line = text_.substr(position_, end == absl::string_view::npos ? end : end - position_);
  position_ = end == absl::string_view::npos ? text_.size() : end + 1;
  ++num_lines_;
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<AsciiColumn>& columns, uint64_t max_lines_behind,
                              LineReader* lines, std::string* packed) {
  // A value takes at least a digit and a separator. Larger counts are refused before memory is reserved.
  if (columns.empty() || num_points > lines->remaining() / (2 * columns.size()) + 1) {
    return absl::InvalidArgumentError(absl::StrCat("the header promises ", num_points, " points of ", columns.size(),
                                                   " values, but only ", lines->remaining(), " bytes follow"));
  }
  size_t step = 0;
  for (const AsciiColumn& column : columns) step += static_cast<size_t>(SizeOf(column.type));
  packed->reserve(num_points * step);
  std::vector<absl::string_view> tokens;
  for (uint64_t i = 0; i < num_points;) {
    const std::optional<absl::string_view> line = lines->Next();
    if (!line) {
      return absl::InvalidArgumentError(absl::StrCat("the file ends after ", i, " of ", num_points, " points"));
    }
    if (const absl::Status status = SplitPoint(*line, columns, &tokens); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", lines->num_lines(), ": ", status.message()));
    }
    if (tokens.empty()) continue;
    if (tokens.size() != columns.size()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", lines->num_lines(), " has ", tokens.size(),
                                                     " values, the header promises ", columns.size()));
    }
    for (size_t c = 0; c < columns.size(); ++c) {
      double value = 0;
      const PointFieldType type = columns[c].type;
      if (type == v1::POINT_FIELD_TYPE_UNSPECIFIED) continue;
      if (!ParseNumber(tokens[c], &value) || !AppendValueAs(type, value, packed)) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", lines->num_lines(), ": '", Shown(tokens[c]), "' is not a ", NameOf(type), " value"));
      }
    }
    ++i;
  }
  return CheckEnd(num_points, max_lines_behind, lines);
}

}  // namespace voxserve::client
