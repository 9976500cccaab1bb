#pragma once

// EngineObserver receives the engine's events for metrics. server/ implements it; the engine knows no metric library.
//
// - Threads: called from several of the engine's threads at once. Implementations are thread-safe and quick, and never
//   call back into the engine.

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

  // A stage of a batch ended. Stage::kQueue is reported for every request.
  virtual void OnStage(std::string_view model, Stage stage, absl::Duration duration) = 0;
  // A batch ran.
  virtual void OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) = 0;
  // Reports the fates of a request's points.
  virtual void OnPoints(std::string_view model, const PointCounts& counts) = 0;
  // A request had box candidates that were left out, since one of their numbers is NaN or infinite.
  virtual void OnNotFiniteBoxes(std::string_view model, int64_t candidates) = 0;
  // A batch ended that had a predicted time. Not called where nothing is known to predict from.
  virtual void OnPrediction(std::string_view model, absl::Duration predicted, absl::Duration actual) = 0;
  // Reports the device time of a batch, with or without a prediction. Batches that run side by side share their
  // device's time.
  virtual void OnDeviceTime(std::string_view model, absl::Duration duration) = 0;
  // A batch has run on the device for far longer than predicted (BatchWatchdog). Called once per batch.
  virtual void OnStuckBatch(std::string_view model, std::string_view device) = 0;
  // A task will not run: it left the queue or never entered it. Called once per task.
  virtual void OnDropped(std::string_view model, DropReason reason) = 0;
  virtual void OnQueueDepth(std::string_view model, int64_t tasks) = 0;
  // ready = false: loading, failed or gone.
  virtual void OnModelState(std::string_view model, int64_t version, bool ready) = 0;
  // The version is no longer listed: it was unloaded, or its folder is gone. Comes after OnModelState(ready = false).
  // Tasks that it had accepted may still end. If the version comes back, OnModelState announces it again.
  virtual void OnModelRemoved(std::string_view model, int64_t version) = 0;
  // A coordinate table was planned as a grid, which did not fit max_grid_bytes, and became a hash table.
  virtual void OnGridFallback() = 0;
  // A GPU's batch ran again with exact sizes, since a forecast was wrong.
  virtual void OnRerun() = 0;
  // A batch's maps did not fit a GPU's memory and were made on the CPU.
  virtual void OnGeometryFallback() = 0;
  // A tuned plan was looked up for a model that was loaded.
  virtual void OnPlanLookup(bool found) = 0;
  // The plan by which a model runs on a device from now on. source: as ModelVersionInfo::plan_source.
  virtual void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) = 0;
  // The time that a batch took on a stream ("0", "1", ...) of a device.
  virtual void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) = 0;
  // The bytes of a device that are held: by contexts ("batches", "weights"), or by copies of streams' sweeps
  // ("sweeps").
  virtual void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) = 0;
};

}  // namespace voxserve
