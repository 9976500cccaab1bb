#pragma once

// GrpcTimers keeps gRPC's timers in time where the wall clock is set back. gRPC 1.51.1 counts them by the monotonic
// clock, but its thread sleeps until the next one on a lock of Abseil's, by the wall clock. A new timer wakes it, so
// this sets one every second: without it connections would live beyond --max_connection_age, by as much as the clock
// was set back. It has a thread of its own, which its destructor ends.

#include <grpcpp/alarm.h>

#include <atomic>
#include <memory>

#include "server/identity/reload_thread.h"

namespace voxserve {

class GrpcTimers {
 public:
  GrpcTimers();

 private:
  void Wake();

  // Whether the alarm is set and has not gone off. Its function may run after this object has ended.
  const std::shared_ptr<std::atomic<bool>> is_set_;
  grpc::Alarm alarm_;
  ReloadThread thread_;
};

}  // namespace voxserve
