#pragma once

// Writes one line per event to stderr: time, level, message, then fields. By default as text with key=value pairs,
// readable for people and programs; after SetLogFormat(LogFormat::kJson) as one JSON object a line:
//
//   2026-11-21T08:15:02.123456Z INFO model ready model=minkunet version=1 parameters=5441036 load_ms=84
//   {"time":"2026-11-21T08:15:02.123Z","level":"INFO","message":"model ready","model":"minkunet","version":1,...}
//
//   Log(LogLevel::kInfo, "model ready", {{"model", name}, {"version", version}});
//
// Thread-safe. A line is written whole; one beyond kMaxLogLineBytes is shortened, in JSON by its longest texts. Log
// returns after the line is written, so it may wait for the reader of stderr; with a LogWriter (log_writer.h) it never
// waits.
//
// - Text: values with spaces, quotes or '=' are quoted.
// - JSON: numbers and booleans keep their types; NaN and infinities are null. Bytes that are no UTF-8 become U+FFFD. A
//   field with the name of an earlier member gets the first free one of name_2, name_3, ...

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace voxserve {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class LogFormat { kText, kJson };

struct LogField {
  using Value = std::variant<std::monostate, std::string, int64_t, uint64_t, double, bool>;

  // v: a string, a number or a boolean. Debian's absl::string_view is not std::string_view.
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(ValueOf(v)) {}
  // Returns a field that is left out of the line if the text is empty.
  static LogField IfAny(std::string_view key, const std::string& text) {
    LogField field(key, text);
    if (text.empty()) field.value = std::monostate();
    return field;
  }

  std::string_view key;
  Value value;

 private:
  template <typename T>
  static Value ValueOf(const T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      return v;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(v);
    } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      return static_cast<int64_t>(v);
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<uint64_t>(v);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return std::string(std::string_view(v));
    } else {
      return std::string(v.data(), v.size());
    }
  }
};

constexpr size_t kMaxLogLineBytes = 32 << 10;

// Returns the line that Log writes in the current format, including its line end.
std::string LogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Sets the lowest level that is written. The default is kInfo.
void SetMinLogLevel(LogLevel level);
// Sets the form of the lines from now on. The default is kText.
void SetLogFormat(LogFormat format);

}  // namespace voxserve
