#include "server/metrics/recent_rate.h"

namespace voxserve {

void RecentRate::Add(absl::Time now) {
  const int64_t unix_seconds = absl::ToUnixSeconds(now);
  Second& second = seconds_[unix_seconds % seconds_.size()];
  if (second.unix_seconds != unix_seconds) second = {.unix_seconds = unix_seconds, .events = 0};
  ++second.events;
}

std::vector<int64_t> RecentRate::History(absl::Time now) const {
  const int64_t end = absl::ToUnixSeconds(now);
  std::vector<int64_t> history;
  history.reserve(kSeconds);
  for (int64_t unix_seconds = end - kSeconds; unix_seconds < end; ++unix_seconds) {
    const Second& second = seconds_[unix_seconds % seconds_.size()];
    history.push_back(second.unix_seconds == unix_seconds ? second.events : 0);
  }
  return history;
}

}  // namespace voxserve
