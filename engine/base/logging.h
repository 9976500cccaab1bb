#pragma once

// Writes one line per event to stderr: time, level, message, then key=value pairs, readable for people and programs:
//
//   2026-11-21T08:15:02.123456Z INFO model ready model=minkunet version=1 parameters=5441036 load_ms=84
//
//   Log(LogLevel::kInfo, "model ready", {{"model", name}, {"version", version}});
//
// Thread-safe. A line is written whole; one beyond kMaxLogLineBytes is shortened. Values with spaces, quotes or '=' are
// quoted. Log returns after the line is written, so it may wait for the reader of stderr; with a LogWriter
// (log_writer.h) it never waits.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace voxserve {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

struct LogField {
  // v: a string, or what absl::StrCat takes. Debian's absl::string_view is not std::string_view.
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(Text(v)) {}
  std::string_view key;
  std::string value;

 private:
  template <typename T>
  static std::string Text(const T& v) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return std::string(std::string_view(v));
    } else {
      return absl::StrCat(v);
    }
  }
};

constexpr size_t kMaxLogLineBytes = 32 << 10;

// Returns the line that Log writes, including its line end.
std::string LogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Sets the lowest level that is written. The default is kInfo.
void SetMinLogLevel(LogLevel level);

}  // namespace voxserve
