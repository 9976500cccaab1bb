#pragma once

// This header has the clock for limits, waits and durations: SteadyNow, which follows the system's monotonic clock.
// This clock runs evenly even if the wall clock is set. With the wall clock, a machine that gets its time late, or
// whose operator sets the time, could end requests that have time left, or sleep for hours.
//
// The wall clock (absl::Now) is for times that are compared with other machines' times: stamps of sensors,
// certificates, log lines. Abseil 20220623 measures waits with a limit (WaitWithTimeout, AwaitWithDeadline,
// Notification) by the wall clock. So waits with a limit use the two classes below.

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

// Returns the time by the monotonic clock. At the first call it equals the wall clock's time; later the two clocks may
// differ. So compare a time of SteadyNow only with other times of SteadyNow. Thread-safe.
absl::Time SteadyNow();

// A client sends with its request how much time the request has left. The server counts this time from the request's
// arrival, so the deadline passes at the client earlier than here, by the time of the transport. kDeadlineTransit is
// the assumed limit of that difference: if a client cancels within this time before the deadline passes here, the
// deadline counts as passed.
inline constexpr absl::Duration kDeadlineTransit = absl::Milliseconds(20);

// A condition variable like absl::CondVar, but with limits by SteadyNow. Thread-safe.
class SteadyCondVar {
 public:
  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { WaitUntil(mutex, absl::InfiniteFuture()); }
  // Returns after a signal, at the time `until`, or spuriously. With a finite `until`, returns after 24 hours at the
  // latest. So callers check their condition in a loop.
  void WaitUntil(absl::Mutex* mutex, absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  std::condition_variable_any changed_;
};

// A notification like absl::Notification, but with limits by the monotonic clock. Thread-safe.
class SteadyNotification {
 public:
  void Notify();
  // Waits until Notify is called, but at most for `limit` and at most for 24 hours. Returns true if Notify has been
  // called.
  bool WaitFor(absl::Duration limit);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_notified_ = false;
};

}  // namespace voxserve
