#pragma once

// ReloadThread calls the function `look` once every `interval`, on a thread of its own, until the ReloadThread is
// destroyed. The server's `look` reads its token and TLS files again. Comparing contents, rather than file times, also
// notices changed symbolic links and mounted Kubernetes secrets.

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
