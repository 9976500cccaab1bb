#pragma once

// DeviceLoad predicts when the batches that run on one device end. It is a part of LatencyModel.
//
// - Rule: a device does one second of device time per second. Its streams share it in equal parts, so a batch that runs
//   beside another is charged half of the time that passes.
// - Overdue: a batch that runs beyond its expected time is expected to need as much longer as it is overdue.
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

  void Start(uint64_t batch, absl::Duration expected, absl::Time now);
  // Returns the device time that the batch was charged.
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
    double virtual_start = 0;  // seconds
    double expected = 0;
  };

  double VirtualTime(absl::Time now) const;
  double RemainingOf(const Running& batch, double virtual_now) const;
  void Advance(absl::Time now);

  int num_workers_;
  absl::flat_hash_map<uint64_t, Running> running_;  // by batch
  // Seconds charged to a (hypothetical) batch that runs all the time.
  double virtual_time_ = 0;
  absl::Time updated_ = absl::InfinitePast();
};

// Returns the time at which the last of the work that is queued for several devices has begun. Until then all devices
// that take part are busy. `remaining` is by device; `work` is the time that each device would need for all of the
// work.
absl::Duration UntilStarted(absl::Span<const absl::Duration> remaining, absl::Span<const absl::Duration> work);

}  // namespace voxserve
