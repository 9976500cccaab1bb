#pragma once

// EngineObserver receives the engine's events for metrics. server/ implements it; the engine knows no metric library.
// An event that an implementation does not override is ignored.
//
// - Threads: the engine calls it from several threads at once, sometimes under a lock. Implementations must be
//   thread-safe and quick, and must never call back into the engine.
// - Parts: a batch that fails as a whole runs again in halves (Worker). Below, "a run" is the whole batch, if it ran at
//   once, or each part.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/stage.h"

namespace voxserve {

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // A stage of a run took this time. Stage::kQueue is reported for every request: its time until the batch started.
  virtual void OnStage(std::string_view /*model*/, Stage /*stage*/, absl::Duration /*duration*/) {}
  // A run of this many requests ended, or failed (then points and voxels are 0).
  virtual void OnBatch(std::string_view /*model*/, int64_t /*requests*/, int64_t /*points*/, int64_t /*voxels*/) {}
  // Reports, for a request that ran without an error, how many of its points were used or left out, and why.
  virtual void OnPoints(std::string_view /*model*/, const PointCounts& /*counts*/) {}
  // Reports how many of a request's box candidates were left out because one of their numbers is NaN or infinite. May
  // be 0.
  virtual void OnNotFiniteBoxes(std::string_view /*model*/, int64_t /*candidates*/) {}
  // A batch ended for which a time had been predicted. Not called for a batch that failed, ran in parts, or returned
  // tensors in addition to the model's labels or boxes (IsTypical), nor if nothing was known to predict from.
  virtual void OnPrediction(std::string_view /*model*/, absl::Duration /*predicted*/, absl::Duration /*actual*/) {}
  // Reports the device time of every batch. Batches that run side by side share their device's time.
  virtual void OnDeviceTime(std::string_view /*model*/, absl::Duration /*duration*/) {}
  // A batch has run on the device for far longer than predicted (BatchWatchdog). Called once per batch.
  virtual void OnStuckBatch(std::string_view /*model*/, std::string_view /*device*/) {}
  // A task will not run: it left the queue or never entered it. Called once for each such task.
  virtual void OnDropped(std::string_view /*model*/, DropReason /*reason*/) {}
  // The number of the model's waiting tasks has changed to `tasks`.
  virtual void OnQueueDepth(std::string_view /*model*/, int64_t /*tasks*/) {}
  // A version was put into service (ready = true), or was listed and is not in service: it is loading, or it was
  // removed (ready = false).
  virtual void OnModelState(std::string_view /*model*/, int64_t /*version*/, bool /*ready*/) {}
  // The version is no longer listed: it was unloaded, or its folder is gone. Comes after OnModelState(ready = false).
  // Tasks that it had accepted may still end. If the version comes back, OnModelState announces it again.
  virtual void OnModelRemoved(std::string_view /*model*/, int64_t /*version*/) {}
  // A coordinate table was planned as a grid, which did not fit max_grid_bytes, and became a hash table.
  virtual void OnGridFallback() {}
  // A run on a GPU was repeated with exact sizes, because a forecast of its sizes, plan or memory was wrong.
  virtual void OnRerun() {}
  // A GPU's batch was replayed as a CUDA graph (executor/captured_batches.h).
  virtual void OnReplay() {}
  // The levels and rulebooks of a run did not fit a GPU's memory and were made on the CPU.
  virtual void OnGeometryFallback() {}
  // A tuned plan was looked up for one device of a version that is being loaded.
  virtual void OnPlanLookup(bool /*found*/) {}
  // The version runs on the device by this plan from now on. source: one of the values of
  // ModelVersionInfo::plan_source.
  virtual void OnPlan(std::string_view /*model*/, int64_t /*version*/, std::string_view /*device*/,
                      std::string_view /*source*/) {}
  // A run took this time on a stream ("0", "1", ...) of a device: the sum of its stages, without the queue.
  virtual void OnDeviceBusy(std::string_view /*device*/, std::string_view /*stream*/, absl::Duration /*duration*/) {}
  // This many bytes of a device's memory are held for one kind of use: "batches" (by the workers' contexts), "weights"
  // (by model versions), "sweeps" (by a GPU's copies of streams' sweeps). For the CPU it is host memory.
  virtual void OnDeviceMemory(std::string_view /*device*/, std::string_view /*kind*/, int64_t /*bytes*/) {}
};

}  // namespace voxserve
