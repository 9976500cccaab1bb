#include "engine/base/logging.h"

#include <atomic>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/cut_text.h"
#include "engine/base/log_writer.h"

namespace voxserve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kShortened = " ...[shortened]";

std::atomic<LogLevel> min_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};

std::string_view NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      break;
  }
  return "ERROR";
}

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == 0x7f) return true;
  }
  return false;
}

std::string TextOf(const LogField::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  if (const auto* number = std::get_if<uint64_t>(&value)) return absl::StrCat(*number);
  return absl::StrCat(std::get<double>(value));
}

std::string TextLine(LogLevel level, absl::Time time, std::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string line = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ ", time, absl::UTCTimeZone());
  line.append(NameOf(level)).append(" ").append(message);
  for (const LogField& field : fields) {
    if (std::holds_alternative<std::monostate>(field.value)) continue;
    const std::string value = TextOf(field.value);
    line.append(" ").append(field.key).append("=");
    if (NeedsQuotes(value)) {
      line.append("\"").append(absl::Utf8SafeCEscape(value)).append("\"");
    } else {
      line.append(value);
    }
  }
  if (line.size() >= kMaxLogLineBytes) {
    line.resize(CutAtCharacter(line, kMaxLogLineBytes - kShortened.size() - 1).size());
    line.append(kShortened);
  }
  return line;
}

Json JsonOf(const LogField::Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return nullptr;
        } else {
          return v;
        }
      },
      value);
}

std::string FreeName(const Json& object, std::string_view key) {
  std::string name(key);
  for (int i = 2; object.contains(name); ++i) name = absl::StrCat(std::string(key), "_", i);
  return name;
}

std::string Dump(const Json& object) {
  return object.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string JsonLine(LogLevel level, absl::Time time, std::string_view message,
                     std::initializer_list<LogField> fields) {
  Json object = Json::object();
  object["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
  object["level"] = std::string(NameOf(level));
  object["message"] = std::string(message);
  for (const LogField& field : fields) {
    if (std::holds_alternative<std::monostate>(field.value)) continue;
    object[FreeName(object, field.key)] = JsonOf(field.value);
  }
  std::string line = Dump(object);
  // A byte of a text may take 6 bytes in JSON. So the limit for texts is halved until the line is short enough.
  for (size_t limit = kMaxLogLineBytes / 2; line.size() >= kMaxLogLineBytes && limit > 0; limit /= 2) {
    for (auto& [name, value] : object.items()) {
      if (!value.is_string()) continue;
      const std::string& text = value.get_ref<const std::string&>();
      if (text.size() <= limit + kShortened.size()) continue;
      value = std::string(CutAtCharacter(text, limit)).append(kShortened);
    }
    line = Dump(object);
  }
  return line;
}

}  // namespace

std::string LogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  const bool is_json = log_format.load(std::memory_order_relaxed) == LogFormat::kJson;
  std::string line = (is_json ? JsonLine : TextLine)(level, absl::Now(), message, fields);
  line += '\n';
  return line;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
  try {
    LogWriter::Write(LogLine(level, message, fields));
  } catch (const std::bad_alloc&) {
    LogWriter::Drop();
  }
}

void SetMinLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }

void SetLogFormat(LogFormat format) { log_format.store(format, std::memory_order_relaxed); }

}  // namespace voxserve
