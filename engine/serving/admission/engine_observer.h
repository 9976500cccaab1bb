#pragma once

// How metrics leave the engine. server/ implements it; the engine knows no metric library.
//
// Called from the engine's threads, several at once: implementations are thread-safe and quick, and never call back.

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

  // A stage of a batch ended. Stage::kQueue is told of every request.
  virtual void OnStage(std::string_view model, Stage stage, absl::Duration duration) = 0;
  // A batch ran.
  virtual void OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) = 0;
  // The fates of a request's points.
  virtual void OnPoints(std::string_view model, const PointCounts& counts) = 0;
  // Candidates of boxes of a request that are no boxes, since some number of theirs is NaN or infinite.
  virtual void OnNotFiniteBoxes(std::string_view model, int64_t candidates) = 0;
  // A batch ended whose time had been predicted when it began. Not called where nothing is known to predict from.
  virtual void OnPrediction(std::string_view model, absl::Duration predicted, absl::Duration actual) = 0;
  // Device time that a batch took, whether it was predicted or not; batches side by side share their device's.
  virtual void OnDeviceTime(std::string_view model, absl::Duration duration) = 0;
  // A batch has run on the device for far longer than predicted (BatchWatchdog). Told once a batch.
  virtual void OnStuckBatch(std::string_view model, std::string_view device) = 0;
  // A task will not run: it left the queue or never entered it. Told once a task.
  virtual void OnDropped(std::string_view model, DropReason reason) = 0;
  virtual void OnQueueDepth(std::string_view model, int64_t tasks) = 0;
  // ready = false: loading, failed or gone.
  virtual void OnModelState(std::string_view model, int64_t version, bool ready) = 0;
  // The version is listed no more: it was unloaded, or its folder is gone. Comes after OnModelState(ready = false);
  // tasks that it had accepted may still end. OnModelState announces it anew where it comes back.
  virtual void OnModelRemoved(std::string_view model, int64_t version) = 0;
  // A coordinate table was to be a grid and did not fit max_grid_bytes.
  virtual void OnGridFallback() = 0;
  // A GPU's batch had more sites than there was room for, and ran again.
  virtual void OnRerun() = 0;
  // A batch's maps did not fit a GPU's memory and were made on the CPU.
  virtual void OnGeometryFallback() = 0;
  // A model that was loaded looked for its tuned plan.
  virtual void OnPlanLookup(bool found) = 0;
  // By which plan a model runs on a device from now on: ModelVersionInfo::plan_source.
  virtual void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) = 0;
  // Time that a batch took on a stream ("0", "1", ...) of a device.
  virtual void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) = 0;
  // Bytes that a device's contexts hold ("batches", "weights"), and copies of streams' sweeps ("sweeps").
  virtual void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) = 0;
};

}  // namespace voxserve
