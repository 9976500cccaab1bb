#pragma once

// How metrics leave the engine. server/ implements it; the engine knows no metric library.
//
// Called from the engine's threads, several at once: implementations are thread-safe and quick, and never call back.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve {

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  // A stage of a batch ended: queue, copy_in, voxelize, geometry, features, head, copy_out.
  virtual void OnStage(std::string_view model, std::string_view stage, absl::Duration duration) = 0;
  // A batch ran.
  virtual void OnBatch(std::string_view model, int64_t requests, int64_t points, int64_t voxels) = 0;
  // What became of a request's points.
  virtual void OnPoints(std::string_view model, int64_t used, int64_t invalid, int64_t out_of_range,
                        int64_t dropped) = 0;
  // A task will not run: it left the queue ("expired", "cancelled") or never entered it ("queue_full", "draining",
  // "expired").
  virtual void OnDropped(std::string_view model, std::string_view reason) = 0;
  virtual void OnQueueDepth(std::string_view model, int64_t tasks) = 0;
  // ready = false: loading, failed or gone.
  virtual void OnModelState(std::string_view model, int64_t version, bool ready) = 0;
  // A coordinate table was to be a grid and did not fit max_grid_bytes.
  virtual void OnGridFallback() = 0;
  // A batch's maps did not fit a GPU's memory and were made on the CPU.
  virtual void OnGeometryFallback() = 0;
  // A model that was loaded looked for its tuned plan.
  virtual void OnPlanLookup(bool found) = 0;
  // By which plan a model runs on a device from now on: ModelVersionInfo::plan_source.
  virtual void OnPlan(std::string_view model, int64_t version, std::string_view device, std::string_view source) = 0;
  // Time that a device spent computing.
  virtual void OnDeviceBusy(std::string_view device, std::string_view stream, absl::Duration duration) = 0;
  // Bytes that a device's context holds ("batches", "weights").
  virtual void OnDeviceMemory(std::string_view device, std::string_view kind, int64_t bytes) = 0;
};

}  // namespace voxserve
