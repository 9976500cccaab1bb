#pragma once

// PeriodicThread calls a function again and again, on a thread of its own, until the PeriodicThread is destroyed. Only
// the destructor waits for the function, so it may block. The owner declares its PeriodicThread behind all members that
// the function uses.

#include <functional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class PeriodicThread {
 public:
  // Calls `look` after `pause`, and again after the pause that its last call has returned. InfiniteDuration: it is not
  // called again.
  PeriodicThread(absl::Duration pause, std::function<absl::Duration()> look)
      : thread_([this, pause, look = std::move(look)] {
          absl::Duration next = pause;
          while (next != absl::InfiniteDuration() && !stopping_.WaitFor(next)) next = look();
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
