#pragma once

// DeviceLoad predicts when one device has ended the batches that run on it. It is a part of LatencyModel.
//
// - Rule: a device does one second of device time a second, whatever runs there. Its streams share it in equal parts,
//   so a batch that runs beside another is charged half of the time that passes.
// - Overdue: a batch that has had its expected time and still runs is expected to be overdue as long again.
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
  bool is_idle() const { return num_running() < num_workers_; }  // some worker is

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
  // Seconds that have been charged to a batch which ran all the time.
  double virtual_time_ = 0;
  absl::Time updated_ = absl::InfinitePast();
};

// Returns when the last of the work that is queued for several devices has begun at the latest: until then every device
// that is still needed is busy. `remaining` is by device; `work` is the queued work as each device would do it alone.
absl::Duration UntilStarted(absl::Span<const absl::Duration> remaining, absl::Span<const absl::Duration> work);

}  // namespace voxserve
