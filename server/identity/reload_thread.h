#pragma once

// ReloadThread calls a function every second, on a thread of its own, until it is destroyed: for files that are read
// again when they have changed. Looking at the contents finds changes of links and of mounted secrets, too.

#include <functional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class ReloadThread {
 public:
  explicit ReloadThread(std::function<void()> look, absl::Duration interval = absl::Seconds(1))
      : thread_([this, look = std::move(look), interval] {
          while (!stopping_.WaitFor(interval)) look();
        }) {}

  ~ReloadThread() {
    stopping_.Notify();
    thread_.join();
  }

  ReloadThread(const ReloadThread&) = delete;
  ReloadThread& operator=(const ReloadThread&) = delete;

 private:
  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
