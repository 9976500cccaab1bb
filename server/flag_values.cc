#include "server/flag_values.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace voxserve {

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  int64_t unit = 1;
  for (const auto& [suffix, shift] : {std::pair<absl::string_view, int>{"KiB", 10}, {"MiB", 20}, {"GiB", 30}}) {
    if (absl::ConsumeSuffix(&text, suffix)) unit = int64_t{1} << shift;
  }
  int64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < 0 || count > std::numeric_limits<int64_t>::max() / unit) {
    *error = "a size is a number of bytes, or a number and KiB, MiB or GiB: 64MiB";
    return false;
  }
  size->bytes = count * unit;
  return true;
}

std::string AbslUnparseFlag(ByteSize size) {
  for (const auto& [suffix, shift] : {std::pair<const char*, int>{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}) {
    const int64_t unit = int64_t{1} << shift;
    if (size.bytes >= unit && size.bytes % unit == 0) return absl::StrCat(size.bytes / unit, suffix);
  }
  return absl::StrCat(size.bytes);
}

bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error) {
  for (const auto& [name, value] : {std::pair<absl::string_view, LogLevel>{"debug", LogLevel::kDebug},
                                    {"info", LogLevel::kInfo},
                                    {"warning", LogLevel::kWarning},
                                    {"error", LogLevel::kError}}) {
    if (absl::AsciiStrToLower(text) == name) {
      *level = value;
      return true;
    }
  }
  *error = "a level is debug, info, warning or error";
  return false;
}

std::string AbslUnparseFlag(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error) {
  for (const LogFormat value : {LogFormat::kText, LogFormat::kJson}) {
    if (absl::AsciiStrToLower(text) != AbslUnparseFlag(value)) continue;
    *format = value;
    return true;
  }
  *error = "a format is text or json";
  return false;
}

std::string AbslUnparseFlag(LogFormat format) { return format == LogFormat::kJson ? "json" : "text"; }

}  // namespace voxserve
