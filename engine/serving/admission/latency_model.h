#pragma once

// LatencyModel predicts when a batch ends: alone, beside the batches that run, or behind the requests that wait.
//
// - Parts: each model version has a LatencyFit per device (ServedModel::latency), which knows how long its batches
//   take. This class has a DeviceLoad per device, which knows what runs there.
// - Assumption: a device does one second of device time per second, and batches side by side share it in equal parts.
// - Units: a Load describes a whole batch, and its voxels are estimated from its points. The time to sample farthest
//   points (ServedModel::sampling) is added to the network's time.
// - A device is given by its index in the engine's list of devices.
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

// The waiting requests of one model version.
struct WaitingWork {
  // Compares the turns of this version with those of another model that the new request belongs to (ModelTurns).
  struct Turn {
    double lead_seconds = 0;  // device time that this version gets before the other model's next turn; may be negative
    double weight_ratio = 1;  // device time that this version gets for each second of the other model's
  };

  const ServedModel* model = nullptr;
  Load load;
  std::optional<Turn> turn;  // no value: all of this work runs before the new request
};

class LatencyModel {
 public:
  // num_workers: for each device, the number of batches that may run side by side.
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
  // Predicts when a request that arrives now starts and ends. Admission decides by the result. The prediction assumes:
  // - All of `ahead` runs before the request, in batches as full as `max_batch_bytes` and the models' limits allow. If
  //   work has a Turn, only the turns that come first and one more batch of it run before the request.
  // - The request's batch starts when a worker is free and the work ahead has started. It then shares its device with
  //   one batch of each other worker.
  // - Batches that run now take their expected time, and waiting batches take their upper bound (Bound).
  // So the request ends no later than predicted, with the rare exceptions that Bound allows, if `ahead` holds all work
  // that waits at the request's level or at a more urgent one.
  Run PredictRun(const ServedModel& model, const Load& load, absl::Span<const WaitingWork> ahead,
                 const MaxBatchBytes& max_batch_bytes, absl::Time now) const;

  // Record that a batch starts on a device, and that it ends. Finish returns the device time charged to the batch.
  void Start(size_t device, uint64_t batch, absl::Duration expected, absl::Time now);
  absl::Duration Finish(size_t device, uint64_t batch, absl::Time now);

  // Records that a worker of the device takes no more batches.
  void RemoveWorker(size_t device);
  int num_idle_workers() const;  // of all devices

 private:
  std::vector<DeviceLoad> devices_;
};

}  // namespace voxserve
