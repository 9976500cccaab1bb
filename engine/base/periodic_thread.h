#pragma once

// PeriodicThread calls a function again and again, on a thread of its own, until the PeriodicThread is destroyed. Only
// the destructor waits for the function, so it may block. The owner declares its PeriodicThread after all members that
// the function uses.
//
// A call that throws std::bad_alloc has no effect on the next ones: the thread logs it, at most once a minute, and
// calls the function again after the pause that came before the call. So the function must leave its owner's members
// such that it can be called again. Other exceptions end the process.

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class PeriodicThread {
 public:
  // The shortest pause after a call that found no memory.
  static constexpr absl::Duration kPauseWithoutMemory = absl::Milliseconds(10);

  // Calls the function after `pause`. Each call returns the pause before the next one; after InfiniteDuration there is
  // none.
  PeriodicThread(absl::Duration pause, std::function<absl::Duration()> function);

  // Prevents the next call, and waits for one that has begun.
  ~PeriodicThread();

  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;

 private:
  void Run(absl::Duration pause, const std::function<absl::Duration()>& function);

  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
