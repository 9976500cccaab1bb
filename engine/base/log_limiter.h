#pragma once

// LogLimiter keeps frequent events from filling the log. It admits at most kLinesPerSecond lines per key and second.
// With each admitted line it returns how many lines were left out before, so that the caller can log that number.
//
//   const std::optional<int64_t> num_left_out = limiter.Admit("QUEUE_FULL");
//   if (num_left_out.has_value()) Log(...);
//
// Keys are never removed, so they must come from a small set, not from clients. Thread-safe. Refusing a line is quick.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class LogLimiter {
 public:
  static constexpr int kLinesPerSecond = 5;

  explicit LogLimiter(std::function<absl::Time()> now = SteadyNow) : now_(std::move(now)) {}

  // Returns nothing if the key's line is to be left out; else the number of lines left out since the key's last line.
  std::optional<int64_t> Admit(std::string_view key);
  // Does the same for a key with one line in each period. A key is used with one of the two functions.
  std::optional<int64_t> AdmitEvery(absl::Duration period, std::string_view key);

 private:
  // Admits up to max_lines lines of the key in each period.
  std::optional<int64_t> AdmitUpTo(int max_lines, absl::Duration period, std::string_view key);

  struct Lines {
    absl::Time since = absl::InfinitePast();
    int written = 0;  // in the period that began at `since`
    int64_t left_out = 0;
  };

  const std::function<absl::Time()> now_;
  absl::Mutex mutex_;
  std::map<std::string, Lines, std::less<>> lines_ ABSL_GUARDED_BY(mutex_);  // by key
};

}  // namespace voxserve
