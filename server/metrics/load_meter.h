#pragma once

// LoadMeter measures how loaded the server is over the last ten seconds, for clients that balance by load. Not
// thread-safe: Metrics locks.

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve {

struct ServerLoad {
  // The share of the devices' time that is in use. It counts the device time of the last seconds' batches, and the time
  // that the waiting requests will probably take (the mean of the answered ones). Above 1, more requests come than the
  // devices can serve.
  double utilization = 0;
  double answers_per_second = 0;  // requests and frames answered with OK
  double errors_per_second = 0;   // those that another server might have answered
};

// Returns true if another server might answer a request that ended with this code, since it was not the client's fault.
constexpr bool IsServersError(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kUnknown;
}

class LoadMeter {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(10);  // kNumSlots of kSlotTime

  void AddDeviceTime(absl::Time now, absl::Duration duration);
  void AddAnswer(absl::Time now);
  void AddError(absl::Time now);

  // num_waiting: requests in queues. num_devices: at least 1. The window is shorter for a meter that is younger.
  ServerLoad Get(absl::Time now, int64_t num_waiting, int num_devices) const;

 private:
  static constexpr absl::Duration kSlotTime = absl::Milliseconds(100);
  static constexpr int64_t kNumSlots = 100;

  struct Slot {
    int64_t number = -1;  // since the epoch; -1: never used
    absl::Duration device_time;
    int64_t answers = 0;
    int64_t errors = 0;
  };

  Slot& SlotAt(absl::Time now);

  int64_t first_number_ = -1;  // of the oldest event; -1: none
  std::array<Slot, kNumSlots> slots_;
};

}  // namespace voxserve
