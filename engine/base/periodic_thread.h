#pragma once

// PeriodicThread calls a function again and again, on a thread of its own, until the PeriodicThread is destroyed. Only
// the destructor waits for the function, so it may block. The owner declares its PeriodicThread after all members that
// the function uses.

#include <functional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class PeriodicThread {
 public:
  // Calls the function after `pause`. Each call returns the pause before the next one; after InfiniteDuration there is
  // none.
  PeriodicThread(absl::Duration pause, std::function<absl::Duration()> function)
      : thread_([this, pause, function = std::move(function)] {
          absl::Duration next = pause;
          while (next != absl::InfiniteDuration() && !stopping_.WaitFor(next)) next = function();
        }) {}

  // Prevents the next call, and waits for one that has begun.
  ~PeriodicThread() {
    stopping_.Notify();
    thread_.join();
  }

  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;

 private:
  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
