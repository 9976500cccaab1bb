#pragma once

// Log writes one line per event to stderr: the time, the level, the message and then the fields. By default the line is
// text with key=value pairs, which people and programs can read. After SetLogFormat(LogFormat::kJson) the line is a
// JSON object:
//
//   2026-11-21T08:15:02.123456Z INFO model ready model=minkunet version=1 parameters=5441036 load_ms=84
//   {"time":"2026-11-21T08:15:02.123Z","level":"INFO","message":"model ready","model":"minkunet","version":1,...}
//
//   Log(LogLevel::kInfo, "model ready", {{"model", name}, {"version", version}});
//
// - Threads: thread-safe. Lines of different threads are not mixed.
// - Waiting: Log returns after it has written the line, so it waits while stderr takes no more bytes (a pipe that
//   nobody reads). While a LogWriter exists (log_writer.h), Log only queues the line and never waits.
// - Memory: Log does not throw. A line for which there is no memory is dropped; LogWriter counts it.
// - Length: a line that would exceed kMaxLogLineBytes is shortened, and "...[shortened]" marks each cut. A text line
//   loses its end. In a JSON line, all strings longer than a limit are cut to that limit, which is halved until the
//   line fits.
// - Text: a value that is empty or contains spaces, control characters, quotes or '=' is quoted and escaped.
// - JSON: numbers and booleans keep their types; NaN and infinities become null. Bytes that are not valid UTF-8 become
//   U+FFFD. If a field's name is taken by an earlier member, the field gets the first free name of name_2, name_3, ...

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

  // v: a string, a number or a boolean. A string class that does not convert to std::string_view (absl::string_view, if
  // it is a type of its own) must have data() and size().
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(ValueOf(v)) {}
  // Returns a field with this text. If the text is empty, the line leaves the field out.
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

// Sets the lowest level whose lines are written from now on. The default is kInfo.
void SetMinLogLevel(LogLevel level);
// Sets the format of the lines from now on. The default is kText.
void SetLogFormat(LogFormat format);

}  // namespace voxserve
