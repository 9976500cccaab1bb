#pragma once

// Keeps what happens thousands of times a second from filling the log: of each key, a second has a few lines, and the
// next line that is written can say how many were left out before it.
//
//   const std::optional<int64_t> num_left_out = limiter.Admit("QUEUE_FULL");
//   if (num_left_out.has_value()) Log(...);
//
// Keys are kept: they come from a small set, not from clients. Thread-safe, and quick where nothing is to be written.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve {

class LogLimiter {
 public:
  static constexpr int kLinesPerSecond = 5;

  explicit LogLimiter(std::function<absl::Time()> now = absl::Now) : now_(std::move(now)) {}

  // Nothing where the key's line is to be left out; else how many were since its last line.
  std::optional<int64_t> Admit(std::string_view key);

 private:
  struct Lines {
    absl::Time since = absl::InfinitePast();
    int written = 0;  // in the second that began then
    int64_t left_out = 0;
  };

  const std::function<absl::Time()> now_;
  absl::Mutex mutex_;
  std::map<std::string, Lines, std::less<>> lines_ ABSL_GUARDED_BY(mutex_);  // by key
};

}  // namespace voxserve
