#include "engine/base/log_limiter.h"

namespace voxserve {

std::optional<int64_t> LogLimiter::Admit(std::string_view key) {
  const absl::Time now = now_();
  absl::MutexLock lock(&mutex_);
  auto found = lines_.find(key);
  if (found == lines_.end()) found = lines_.emplace(key, Lines()).first;
  Lines& lines = found->second;
  // The clock may have been set back.
  if (now < lines.since || now - lines.since >= absl::Seconds(1)) {
    lines.since = now;
    lines.written = 0;
  }
  if (lines.written >= kLinesPerSecond) {
    ++lines.left_out;
    return std::nullopt;
  }
  ++lines.written;
  return std::exchange(lines.left_out, 0);
}

std::optional<int64_t> LogLimiter::AdmitEvery(absl::Duration period, std::string_view key) {
  const absl::Time now = now_();
  absl::MutexLock lock(&mutex_);
  auto found = lines_.find(key);
  if (found == lines_.end()) found = lines_.emplace(key, Lines()).first;
  Lines& lines = found->second;
  if (now >= lines.since && now - lines.since < period) {  // the clock may have been set back
    ++lines.left_out;
    return std::nullopt;
  }
  lines.since = now;
  return std::exchange(lines.left_out, 0);
}

}  // namespace voxserve
