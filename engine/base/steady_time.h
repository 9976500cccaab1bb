#pragma once

// Time for limits, waits and durations. It passes evenly, whatever is done to the wall clock: a machine that gets its
// time late, or whose operator sets it, must not end requests that have time left, or sleep for hours.
//
// The wall clock (absl::Now) is for what is compared with other machines: stamps of sensors, certificates, log lines.
// Abseil 20220623 measures waits with a limit (WaitWithTimeout, AwaitWithDeadline, Notification) by the wall clock, so
// such waits are made here.

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

// Returns the time by the monotonic clock. At its first call it is the wall clock's; later they may differ. So a Time
// of SteadyNow must only be compared with others of SteadyNow.
absl::Time SteadyNow();

// A request says how much time it has left, so its deadline passes earlier at the client than here, by the time of its
// way. What a client cancels at its deadline comes at most this much before the deadline passes here.
inline constexpr absl::Duration kDeadlineTransit = absl::Milliseconds(20);

// As absl::CondVar, with a limit by SteadyNow. Thread-safe.
class SteadyCondVar {
 public:
  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { WaitUntil(mutex, absl::InfiniteFuture()); }
  // Returns after a signal, at the time, or for no reason.
  void WaitUntil(absl::Mutex* mutex, absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  std::condition_variable_any changed_;
};

// As absl::Notification, with a limit by the monotonic clock. Thread-safe.
class SteadyNotification {
 public:
  void Notify();
  // Waits at most so long. Returns true if Notify has been called.
  bool WaitFor(absl::Duration limit);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_notified_ = false;
};

}  // namespace voxserve
