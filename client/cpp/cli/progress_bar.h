#pragma once

// ProgressBar shows on stderr how many scans of a folder are done: in a terminal as a bar that redraws itself,
// otherwise as a new line now and then.

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve::client {

// Thread-safe.
class ProgressBar {
 public:
  ProgressBar(uint64_t total, bool is_tty);

  void ScanDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the bar from the terminal.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::string Line(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t total_;
  const bool is_tty_;
  const absl::Time start_ = absl::Now();
  absl::Mutex mutex_;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_drawn_ ABSL_GUARDED_BY(mutex_) = absl::Now();
};

// Returns a bar such as "[#####.....] 50%".
std::string FormatFraction(double fraction);

// Returns a line such as "[#####.....] 12/24 scans  8.3/s  0:01 left  1 failed".
std::string FormatProgress(uint64_t done, uint64_t total, uint64_t failed, absl::Duration elapsed);

}  // namespace voxserve::client
