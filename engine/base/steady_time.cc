#include "engine/base/steady_time.h"

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"

namespace voxserve {
namespace {

using Clock = std::chrono::steady_clock;

// Longer waits end after this time; callers of SteadyCondVar check their condition in a loop. The limit keeps the
// clock's times from overflowing.
constexpr absl::Duration kLongestWait = absl::Hours(24);

std::chrono::nanoseconds Limited(absl::Duration limit) {
  return absl::ToChronoNanoseconds(std::clamp(limit, absl::ZeroDuration(), kLongestWait));
}

// absl::Mutex with the names that the standard library expects.
class Lockable {
 public:
  explicit Lockable(absl::Mutex* mutex) : mutex_(mutex) {}
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_->Lock(); }      // NOLINT(readability-identifier-naming)
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_->Unlock(); }  // NOLINT(readability-identifier-naming)

 private:
  absl::Mutex* const mutex_;
};

}  // namespace

absl::Time SteadyNow() {
  static const absl::Time zero = absl::Now() - absl::FromChrono(Clock::now().time_since_epoch());
  return zero + absl::FromChrono(Clock::now().time_since_epoch());
}

void SteadyCondVar::WaitUntil(absl::Mutex* mutex, absl::Time until) {
  Lockable lockable(mutex);
  if (until == absl::InfiniteFuture()) {
    changed_.wait(lockable);
  } else {
    changed_.wait_until(lockable, Clock::now() + Limited(until - SteadyNow()));
  }
}

void SteadyNotification::Notify() {
  const std::lock_guard lock(mutex_);
  is_notified_ = true;
  changed_.notify_all();
}

bool SteadyNotification::WaitFor(absl::Duration limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Clock::now() + Limited(limit), [this] { return is_notified_; });
}

}  // namespace voxserve
