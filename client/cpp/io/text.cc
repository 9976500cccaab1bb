#include "client/cpp/io/text.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/cut_text.h"

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

}  // namespace

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

absl::Status ParseAsciiPoints(uint64_t num_points, const std::vector<PointFieldType>& columns, LineReader* lines,
                              std::string* packed) {
  // A value takes at least a digit and a separator. Larger counts are refused before memory is reserved.
  if (columns.empty() || num_points > lines->remaining() / (2 * columns.size()) + 1) {
    return absl::InvalidArgumentError(absl::StrCat("the header promises ", num_points, " points of ", columns.size(),
                                                   " values, but only ", lines->remaining(), " bytes follow"));
  }
  size_t step = 0;
  for (const PointFieldType type : columns) step += static_cast<size_t>(SizeOf(type));
  packed->reserve(num_points * step);
  std::vector<absl::string_view> tokens;
  for (uint64_t i = 0; i < num_points;) {
    const std::optional<absl::string_view> line = lines->Next();
    if (!line) {
      return absl::InvalidArgumentError(absl::StrCat("the file ends after ", i, " of ", num_points, " points"));
    }
    tokens.clear();
    for (const absl::string_view token : absl::StrSplit(*line, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
      tokens.push_back(token);
    }
    if (tokens.empty()) continue;
    if (tokens.size() != columns.size()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", lines->num_lines(), " has ", tokens.size(),
                                                     " values, the header promises ", columns.size()));
    }
    for (size_t c = 0; c < columns.size(); ++c) {
      double value = 0;
      if (columns[c] == v1::POINT_FIELD_TYPE_UNSPECIFIED) continue;
      if (!absl::SimpleAtod(tokens[c], &value) || !AppendValueAs(columns[c], value, packed)) {
        return absl::InvalidArgumentError(absl::StrCat("line ", lines->num_lines(), ": '", Shown(tokens[c]),
                                                       "' is not a ", NameOf(columns[c]), " value"));
      }
    }
    ++i;
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
