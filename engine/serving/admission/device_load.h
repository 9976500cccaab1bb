#pragma once

// DeviceLoad predicts when the batches that run on one device end. LatencyModel owns one for each device.
//
// - Rule: a device does one second of device time in each second. The batches that run share it in equal parts, so a
//   batch that runs beside one other batch is charged half of the time that passes.
// - Overdue: if a batch runs longer than expected, it is expected to need as much more time as it is overdue.
// - Threads: not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace voxserve {

class DeviceLoad {
 public:
  // num_workers: how many batches may run side by side.
  explicit DeviceLoad(int num_workers) : num_workers_(num_workers) {}

  // Records that a batch starts. expected: its device time.
  void Start(uint64_t batch, absl::Duration expected, absl::Time now);
  // Records that a batch ends. Returns the device time that the batch was charged; zero for an unknown batch.
  absl::Duration Finish(uint64_t batch, absl::Time now);
  void RemoveWorker() { --num_workers_; }

  int num_workers() const { return num_workers_; }
  int num_running() const { return static_cast<int>(running_.size()); }
  bool is_idle() const { return num_running() < num_workers_; }  // at least one worker is idle

  // Returns the device time until all batches have ended.
  absl::Duration Remaining(absl::Time now) const;
  // Returns the time until a worker is free, if no other batch starts; not above Remaining.
  absl::Duration UntilFree(absl::Time now) const;

 private:
  struct Running {
    double virtual_start = 0;  // virtual_time_ when the batch started
    double expected = 0;       // device time, seconds
  };

  double VirtualTime(absl::Time now) const;
  double RemainingOf(const Running& batch, double virtual_now) const;
  void Advance(absl::Time now);

  int num_workers_;
  absl::flat_hash_map<uint64_t, Running> running_;  // by batch
  // Virtual time: the seconds that a batch would have been charged if it had run all the time.
  double virtual_time_ = 0;
  absl::Time updated_ = absl::InfinitePast();  // the time for which virtual_time_ holds
};

// Returns the time, counted from now, until all of a queue of work has begun, if several devices take work from the
// queue whenever they are free. remaining: for each device, the time until its running batches end. work: for each
// device, the time that it would need for the whole queue.
absl::Duration UntilStarted(absl::Span<const absl::Duration> remaining, absl::Span<const absl::Duration> work);

}  // namespace voxserve
