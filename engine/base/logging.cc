#include "engine/base/logging.h"

#include <atomic>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/cut_text.h"
#include "engine/base/log_writer.h"

namespace voxserve {
namespace {

std::atomic<LogLevel> min_level{LogLevel::kInfo};

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

// Shortens the line without cutting a multi-byte character (UTF-8) in two.
void Shorten(std::string* line) {
  constexpr std::string_view kMark = " ...[shortened]";
  if (line->size() < kMaxLogLineBytes) return;
  line->resize(CutAtCharacter(*line, kMaxLogLineBytes - kMark.size() - 1).size());
  line->append(kMark);
}

}  // namespace

std::string LogLine(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  std::string line = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ ", absl::Now(), absl::UTCTimeZone());
  line.append(NameOf(level)).append(" ").append(message);
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=");
    if (NeedsQuotes(field.value)) {
      line.append("\"").append(absl::Utf8SafeCEscape(field.value)).append("\"");
    } else {
      line.append(field.value);
    }
  }
  Shorten(&line);
  line += '\n';
  return line;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
  LogWriter::Write(LogLine(level, message, fields));
}

void SetMinLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }

}  // namespace voxserve
