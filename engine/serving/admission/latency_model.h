#pragma once

// LatencyModel predicts when a batch ends: alone, beside the batches that run, or behind the requests that wait.
//
// - Parts: each model version has a LatencyFit per device (ServedModel::latency), which knows how long its batches
//   take. This class has a DeviceLoad per device, which knows what runs there.
// - Assumption: a device does one second of device time per second, and batches side by side share it in equal parts.
// - Units: a Load is that of a whole batch; voxels are estimated from points. The time of sampling farthest points is
//   added to the network's (ServedModel::sampling).
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

// The requests of one model version that wait.
struct WaitingWork {
  // How the version's turns compare with those of a newcomer of another model (ModelTurns).
  struct Turn {
    double lead_seconds = 0;  // device time that it gets before the newcomer's model has its next turn; may be negative
    double weight_ratio = 1;  // device time that it gets for each second of the newcomer's model before the newcomer
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
  // Returns the device time of one request in a batch of its own, on the slowest device.
  absl::Duration LongestAlone(const ServedModel& model, const Load& load) const;

  // Returns an upper bound (LatencyFit::Bound) of the time that a batch takes if it starts on the device now, beside
  // the batches that run there.
  absl::Duration BoundBesideOthers(const ServedModel& model, size_t device, const Load& load) const;
  // Returns true if one request that starts now is expected to end sooner on `device` than on `other`. If both would
  // end at the same time, the device with fewer running batches wins.
  bool EndsSooner(const ServedModel& model, const Load& load, size_t device, size_t other) const;

  // When a request's batch starts and ends, counted from now.
  struct Run {
    absl::Duration start;
    absl::Duration end;
  };
  // Predicts the run of a request that comes now; admission decides by it.
  // - All of `ahead` runs before the request, in batches as full as `max_batch_bytes` and the models' limits allow. For
  //   work with a Turn, only its turns and one batch beyond them run before.
  // - The batches that run now end before. Then the request's batch shares the device with one batch of each other
  //   worker.
  // - Running batches count with their expected time, waiting ones with their Bound. So the prediction is kept if
  //   `ahead` is all that waits at the request's level or a more urgent one.
  Run PredictRun(const ServedModel& model, const Load& load, absl::Span<const WaitingWork> ahead,
                 const MaxBatchBytes& max_batch_bytes, absl::Time now) const;

  // Tell that a batch starts on a device, and ends there. Finish returns the device time that the batch was charged.
  void Start(size_t device, uint64_t batch, absl::Duration expected, absl::Time now);
  absl::Duration Finish(size_t device, uint64_t batch, absl::Time now);

  // A worker of the device takes no more batches.
  void RemoveWorker(size_t device);
  int num_idle_workers() const;  // of all devices

 private:
  std::vector<DeviceLoad> devices_;
};

}  // namespace voxserve
