#include "engine/base/logging.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

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

}  // namespace

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < min_level.load(std::memory_order_relaxed)) return;
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
  line += '\n';
  // One write keeps lines of several threads whole.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void SetMinLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }

}  // namespace voxserve
