#include "engine/base/log_limiter.h"

namespace voxserve {

std::optional<int64_t> LogLimiter::Admit(std::string_view key) {
  return AdmitUpTo(kLinesPerSecond, absl::Seconds(1), key);
}

std::optional<int64_t> LogLimiter::AdmitEvery(absl::Duration period, std::string_view key) {
  return AdmitUpTo(1, period, key);
}

std::optional<int64_t> LogLimiter::AdmitUpTo(int max_lines, absl::Duration period, std::string_view key) {
  const absl::Time now = now_();
  absl::MutexLock lock(&mutex_);
  auto found = lines_.find(key);
  if (found == lines_.end()) found = lines_.emplace(key, Lines()).first;
  Lines& lines = found->second;
  // The clock may have been set back.
  if (now < lines.since || now - lines.since >= period) {
    lines.since = now;
    lines.written = 0;
  }
  if (lines.written >= max_lines) {
    ++lines.left_out;
    return std::nullopt;
  }
  ++lines.written;
  return std::exchange(lines.left_out, 0);
}

}  // namespace voxserve
