#pragma once

// LoadMeter measures the server's load over the last ten seconds, for clients that balance by load. Not thread-safe:
// its owner, Metrics, locks.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/metrics/sliding_window.h"

namespace voxserve {

struct ServerLoad {
  // The share of the devices' time that is in use: the device time of the batches in the window, plus the time that the
  // waiting requests will probably take, divided by the devices' time in the window. A waiting request counts the mean
  // device time of an answered one. A value above 1 says that more requests come than the devices can serve.
  double utilization = 0;
  double answers_per_second = 0;  // requests and frames answered with OK
  double errors_per_second = 0;   // requests that failed with an IsServersError code
};

// Returns true if another server might answer a request that ended with this code, since it was not the client's fault.
constexpr bool IsServersError(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kUnknown;
}

class LoadMeter {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);  // kNumSlots * kSlotTime

  void AddDeviceTime(absl::Time now, absl::Duration duration) { At(now).device_time += duration; }
  void AddAnswer(absl::Time now) { ++At(now).answers; }
  void AddError(absl::Time now) { ++At(now).errors; }

  // Returns the load at `now`. num_waiting: requests in queues. num_devices: at least 1. The window is shorter than
  // kWindow, but at least 1 s, if the first event was less than kWindow ago.
  ServerLoad Get(absl::Time now, int64_t num_waiting, int num_devices) const;

 private:
  static constexpr absl::Duration kSlotTime = absl::Milliseconds(100);
  static constexpr int64_t kNumSlots = 100;

  struct Sums {
    absl::Duration device_time;
    int64_t answers = 0;
    int64_t errors = 0;
  };

  Sums& At(absl::Time now);

  absl::Time first_ = absl::InfiniteFuture();  // the time of the first event; InfiniteFuture: none
  SlidingWindow<Sums, kNumSlots> window_{kSlotTime};
};

}  // namespace voxserve
