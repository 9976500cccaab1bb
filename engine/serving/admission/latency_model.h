#pragma once

// LatencyModel predicts when a batch ends: alone, beside the batches that run, or after the requests that wait.
//
// - Parts: each model version has a LatencyFit for each device (ServedModel::OnDevice), which has learned how long the
//   version's batches take. This class has a DeviceLoad for each device, which knows the batches that run there.
// - Assumption: a device does one second of device time in each second, and batches that run side by side share it in
//   equal parts. So a batch's device time is the time that the batch takes if it runs alone.
// - Units: a WorkSize describes a whole batch or all waiting requests of a version. Voxels are estimated from points.
//   The time of farthest point sampling (OnDevice::selection) is added to the network's time.
// - A device is given by its index in the engine's list of devices.
// - Threads: not thread-safe. The Batcher owns it and calls it under its lock.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/serving/admission/device_load.h"
#include "engine/serving/admission/memory_model.h"
#include "engine/serving/admission/work_size.h"

namespace voxserve {

struct ServedModel;

// The waiting requests of one model version.
struct WaitingWork {
  // Compares the turns of two models (ModelTurns): the model of this version, and the model of a new request.
  struct Turn {
    double lead_seconds = 0;  // device time that this model gets before the request's model; may be negative
    double weight_ratio = 1;  // device time that this model gets for each second of the request's model
  };

  const ServedModel* model = nullptr;
  WorkSize load;
  std::optional<Turn> turn;  // set for work of another model at the request's level; else all runs before the request
};

class LatencyModel {
 public:
  // num_workers: for each device, the number of batches that may run side by side.
  explicit LatencyModel(absl::Span<const int> num_workers) : devices_(num_workers.begin(), num_workers.end()) {}

  // Returns the expected device time of a batch; zero if nothing has been learned yet.
  static absl::Duration Expected(const ServedModel& model, size_t device, const WorkSize& load);
  // Returns the expected device time of one request in a batch of its own, on the slowest device.
  absl::Duration LongestAlone(const ServedModel& model, const WorkSize& load) const;

  // Returns an upper bound (LatencyFit::Bound) of the time that a batch takes if it starts on the device now, beside
  // the batches that run there.
  absl::Duration BoundBesideOthers(const ServedModel& model, size_t device, const WorkSize& load) const;
  // Returns true if one request that starts now is expected to end sooner on `device` than on `other`. If both would
  // end at the same time, the device with fewer running batches wins.
  bool EndsSooner(const ServedModel& model, const WorkSize& load, size_t device, size_t other) const;

  // When a request's batch starts and ends, counted from now.
  struct Run {
    absl::Duration start;
    absl::Duration end;
  };
  // Predicts when a request that arrives now starts and ends. Admission decides by the result. The prediction assumes:
  // - All of `ahead` runs before the request, in batches as full as `max_batch_bytes` and the models' limits allow.
  //   If a WaitingWork has a Turn, only the part whose turns come first, and one more batch, run before the request.
  // - The request's batch starts when a worker is free and the work ahead has started. It then shares its device with
  //   one batch of each other worker.
  // - Batches that run now take their expected time, and waiting batches take their upper bound (Bound).
  // So the request ends no later than predicted, with the rare exceptions that Bound allows, if `ahead` holds all work
  // that waits at the request's level or at a more urgent one.
  Run PredictRun(const ServedModel& model, const WorkSize& load, absl::Span<const WaitingWork> ahead,
                 const MaxBatchBytes& max_batch_bytes, absl::Time now) const;

  // Start records that a batch starts on a device, and Finish that it ends. Finish returns the device time charged to
  // the batch. batch: the id of the batch.
  void Start(size_t device, uint64_t batch, absl::Duration expected, absl::Time now);
  absl::Duration Finish(size_t device, uint64_t batch, absl::Time now);

  // Records that a worker of the device takes no more batches.
  void RemoveWorker(size_t device);
  // Returns the number of workers of all devices together that run no batch.
  int num_idle_workers() const;

 private:
  std::vector<DeviceLoad> devices_;
};

}  // namespace voxserve
