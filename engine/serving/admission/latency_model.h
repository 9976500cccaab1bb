#pragma once

// LatencyModel predicts when a batch ends: alone, beside the batches that run, or behind the requests that wait.
//
// - Parts: each model version has a LatencyFit per device (ServedModel::latency), which knows how long its batches
//   take. This class adds a DeviceLoad per device, which knows what runs there.
// - Assumption: a device does one second of device time a second, and batches side by side share it in equal parts.
// - Units: a Load is of a whole batch; voxels are estimated from points. Samples of farthest points are a part of the
//   batch's time (ServedModel::sampling).
// - Devices are indices, in the order of the engine's.
// - Threads: not thread-safe. The Batcher owns it and calls it under its lock.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/serving/admission/device_load.h"
#include "engine/serving/admission/load.h"
#include "engine/serving/admission/memory_model.h"

namespace voxserve {

struct ServedModel;

// Requests of one model version that wait.
struct WaitingWork {
  // By how much its turns come before a newcomer's of another model (ModelTurns).
  struct Turn {
    double lead_seconds = 0;  // device time that it has before the newcomer's model has its next turn; may be negative
    double weight_ratio = 1;  // more of it for each second that the newcomer's model has before the newcomer
  };

  const ServedModel* model = nullptr;
  Load load;
  std::optional<Turn> turn;  // none: all of it comes first
};

class LatencyModel {
 public:
  // num_workers: by device, how many batches may run there side by side.
  explicit LatencyModel(absl::Span<const int> num_workers) : devices_(num_workers.begin(), num_workers.end()) {}

  // Returns the device time of a batch; zero where nothing is known yet.
  static absl::Duration Expected(const ServedModel& model, size_t device, const Load& load);
  // Returns the device time of one request in a batch of its own, on the device where that is longest.
  absl::Duration LongestAlone(const ServedModel& model, const Load& load) const;

  // Returns the time that a batch takes which starts on the device now, beside those that run there. It is an upper
  // bound (LatencyFit::Bound).
  absl::Duration BoundBesideOthers(const ServedModel& model, size_t device, const Load& load) const;
  // Returns true if one request that starts now is expected to end sooner on `device` than on `other`. Where both would
  // end at once, the device with fewer running batches wins.
  bool EndsSooner(const ServedModel& model, const Load& load, size_t device, size_t other) const;

  // When a request's batch starts and ends, counted from now.
  struct Run {
    absl::Duration start;
    absl::Duration end;
  };
  // Predicts the run of a request that comes now; admission goes by it. All of `ahead` runs before it, but of work with
  // a Turn only what its turns are and one batch beyond them, in batches as full as `max_batch_bytes` and the models'
  // limits let them be, and so does what runs already. Its own batch then shares the device with a batch of every other
  // worker. Running batches count with their expected time, waiting ones with their Bound. So a request keeps what it
  // was promised if `ahead` is all that waits at its level or a more urgent one.
  Run PredictRun(const ServedModel& model, const Load& load, absl::Span<const WaitingWork> ahead,
                 const MaxBatchBytes& max_batch_bytes, absl::Time now) const;

  // A batch starts on a device, and ends there. Finish returns the device time that the batch was charged.
  void Start(size_t device, uint64_t batch, absl::Duration expected, absl::Time now);
  absl::Duration Finish(size_t device, uint64_t batch, absl::Time now);

  // A worker of the device takes no more batches.
  void RemoveWorker(size_t device);
  int num_idle_workers() const;  // of all devices

 private:
  std::vector<DeviceLoad> devices_;
};

}  // namespace voxserve
