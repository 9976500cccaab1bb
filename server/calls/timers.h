#pragma once

// Timers calls functions at given times of SteadyNow, from one thread of its own. It enforces the time limits of calls.
//
// - Threads: thread-safe. A function is called without the lock, so it may set and clear timers; it must not block.
// - Lifetime: a function may still be running, or about to run, when Clear returns. So it should hold a weak_ptr to
//   the object that it needs. The destructor waits for the thread; functions that are not due by then are not called.

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class Timers {
 public:
  using Id = uint64_t;  // never 0 for a timer

  Timers() : thread_([this] { Run(); }) {}
  ~Timers();
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // Calls the function once, at this time or soon after it.
  Id Set(absl::Time when, std::function<void()> on_due);
  // Prevents the function's call, unless it has begun. Ignores an id that is not waiting.
  void Clear(Id id);

  // Returns the time at which the thread wakes by itself; InfinitePast while it does not sleep.
  absl::Time wakes() const;

 private:
  void Run();

  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;
  // Clearing the timer that the thread sleeps for does not wake it, so calls that set and clear timers one after
  // another need not wake it.
  absl::Time wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Id next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, Id>, std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Id, absl::Time> times_ ABSL_GUARDED_BY(mutex_);  // by id; the keys of waiting_
  std::thread thread_;
};

}  // namespace voxserve
