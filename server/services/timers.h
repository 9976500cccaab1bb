#pragma once

// Timers calls functions back at their times, from one thread of its own. The limits of calls in time are kept by it.
//
// - Threads: thread-safe. A function is called without the lock, so it may set and clear timers; it must not block.
// - Lifetime: a function may still be running, or about to run, when Clear returns. So it holds a weak_ptr to
//   the object that it needs. The destructor waits for the thread; functions that are not due then are not called.

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class Timers {
 public:
  using Id = uint64_t;  // 0 is no timer's

  Timers() : thread_([this] { Run(); }) {}
  ~Timers();
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // Calls the function once, at the time or soon after it.
  Id Set(absl::Time when, std::function<void()> on_due);
  // The function is not called, unless its call has begun. An id that is not waiting is passed over.
  void Clear(Id id);

 private:
  void Run();

  absl::Mutex mutex_;
  absl::CondVar changed_;
  // When the thread wakes by itself; InfinitePast while it does not sleep. It sleeps on where that timer was cleared:
  // so calls that set and clear timers one after the other need not wake it.
  absl::Time wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Id next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, Id>, std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Id, absl::Time> times_ ABSL_GUARDED_BY(mutex_);  // of those that wait
  std::thread thread_;
};

}  // namespace voxserve
