#pragma once

// What runs on each device, and when the device is expected to be through with it.
//
// The rule: a device does one second of device time a second, whatever runs there. Its streams share it in equal parts,
// so a batch that runs beside another is charged half of the time that passes. A batch that has had its expected time
// and still runs is overdue, and expected to be overdue as long again.
//
// Not thread-safe: the Batcher's, under its lock.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace voxserve {

class DeviceLoad {
 public:
  // num_workers: batches that may run side by side.
  explicit DeviceLoad(int num_workers) : num_workers_(num_workers) {}

  void Start(uint64_t batch, absl::Duration expected, absl::Time now);
  // Returns the device time that the batch was charged.
  absl::Duration Finish(uint64_t batch, absl::Time now);
  void RemoveWorker() { --num_workers_; }

  int num_workers() const { return num_workers_; }
  int num_running() const { return static_cast<int>(running_.size()); }
  bool is_idle() const { return num_running() < num_workers_; }  // a worker is

  // Device time until all batches have ended.
  absl::Duration Remaining(absl::Time now) const;
  // Until a worker is free, where no other batch starts; not above Remaining.
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
  // Seconds that a batch has been charged which ran all the time.
  double virtual_time_ = 0;
  absl::Time updated_ = absl::InfinitePast();
};

// When work that is queued for several devices, each at its own speed, has been begun at the latest: until then every
// device that is still needed is busy. remaining: of each device; work: the queued work as each alone would do it.
absl::Duration UntilStarted(absl::Span<const absl::Duration> remaining, absl::Span<const absl::Duration> work);

}  // namespace voxserve
