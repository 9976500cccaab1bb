#pragma once

// CudaBatch is one batch on a GPU: its program, tasks, limits and options, its capacities, and the report that it
// fills. It runs on the context's stream. Each cloud's bytes are copied to the device unchanged and decoded there
// (device_points.h). CudaExecutorState holds the state that outlives a batch.
//
// - Normally the host launches the whole batch without waiting for a size. It lays out memory by a forecast of the
//   numbers of sites: the sites per point of earlier batches, plus an eighth (SiteForecast). Kernels read the row
//   counts on the device.
// - If a batch has more sites than forecast, if the plan was chosen by a wrong forecast, or if the GPU has no memory
//   for the forecast, the batch's result is discarded and the batch runs again with exact sizes.
// - A batch without a forecast (a program's first batch of about this size) and a batch whose plan needs sizes on the
//   host run with exact sizes at once. The host then waits once for the sizes of levels and rulebooks, lays out memory
//   and groups matrix products by these sizes, and waits once more for the result.
// - A network that prunes has one more segment for each prune in a row (parallel prunes share one). With exact sizes,
//   the host waits once more for the sizes of each segment.
// - If the device has no room for a batch's levels and rulebooks, and RunOptions allow it, the CPU makes them with
//   exact sizes, and they are uploaded (BatchReport::geometry_on_cpu). A program with several segments cannot do that,
//   since its later levels depend on scores on the device.
// - A batch that still does not fit fails with RESOURCE_EXHAUSTED, and the context frees its batch memory.
//
// If RunOptions::captures is set, batches with capacities (batch_capacities.h) reuse the capacities of earlier batches
// of the same program, number of samples and rough size (capacity_cache.h), so that they use the same memory. When the
// points are on the device, the rest of the batch up to the answers in page-locked memory is one CUDA graph, which is
// captured once and replayed in the batches that follow (captured_batches.h). A batch runs without a capture if it
// samples points or does not answer all its points.
//
// CudaExecutor makes one for each batch. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/executor/capacity_cache.h"
#include "engine/executor/captured_batches.h"
#include "engine/executor/device_points.h"
#include "engine/executor/executor.h"
#include "engine/executor/feature_pass.h"
#include "engine/executor/site_forecast.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/point_sampling.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// CudaExecutorState holds the state that an execution context's batches share. CudaExecutor owns it.
struct CudaExecutorState {
  ExecutionContext* context = nullptr;
  DeviceGeometry geometry;           // of the batch that ran last
  bool logged_cpu_fallback = false;  // logs once that maps were made on the CPU
  SiteForecasts forecasts;
  CapacityCache capacity_cache;
  CapturedBatches captured;
  bool logged_no_capture = false;  // a failed capture is logged only once
  std::vector<Event> step_ends;
  DevicePoints points;
};

class CudaBatch {
 public:
  // All arguments outlive the batch. output.samples has one entry for each task.
  CudaBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
            CudaExecutorState& state, BatchReport& output);

  // Runs the batch and fills the report, but not its status. Call it once. Throws std::bad_alloc if the host has no
  // memory. After an error the batch's work may still be running: the caller waits for the stream before the batch
  // ends.
  absl::Status Run();
  // Drops what the batch captured, if it was not kept. Call it when the host has waited for the stream.
  void DropCaptured() { new_batch_ = {}; }

 private:
  // Returns the capacities for the batch; none if the host must wait for the batch's sizes. Called after LayOutPoints.
  BatchCapacities ForecastCapacities();
  // Copies the points in, and runs the batch within its capacities. If they are too small, or the chosen plan is for
  // another number of voxels, returns OUT_OF_RANGE. The caller then runs the batch again; a client never sees this
  // error.
  absl::Status RunWithinCapacities();
  // Teaches the program's forecast the numbers of sites that the batch had, after WaitForSizes. If the batch did not
  // fit its capacities, those after a prune are not known, since a prune that had no sites keeps none.
  void LearnSizes();
  // Queues the batch after CopyIn: its geometry, its steps and the copy of its sizes.
  absl::Status QueueWithinCapacities(FeaturePass& pass);
  // Returns true if QueueWithinCapacities can be captured for this batch. Called after CopyIn.
  bool MayCapture(const OutputCollector& outputs) const;
  // Does the same as QueueWithinCapacities: replays a captured batch of the same shape, or also captures this one if
  // the shape came before.
  absl::Status RunCaptured(FeaturePass& pass);
  // Brings the host's state to that after QueueWithinCapacities, for a batch that is queued or about to be replayed.
  // copied_in: the arena's mark after CopyIn.
  absl::Status TakeQueued(const DeviceArena::Mark& copied_in, const CapturedBatch& batch, FeaturePass& pass);
  BatchShape ShapeOf(const FeaturePass& pass) const;
  // Keeps what the batch captured, for later batches. Called when the host has waited for the stream.
  void KeepCaptured();
  absl::Status RunWithSizes();
  absl::Status CopyIn();
  // Writes the counts of points and voxels into the samples, and refuses samples that exceed a limit.
  void TakeCounts();
  DeviceSizes::Shape ShapeOfSizes();
  // Samples and voxelizes the points, and makes the first segment's levels and rulebooks. num_points: the most that
  // there can be.
  absl::Status MakeGeometry(int64_t num_points);
  // Makes the levels and rulebooks of a segment after the first.
  absl::Status MakeLaterMaps(const ProgramSegment& segment, const StepContext& context);
  // Makes the only segment's levels and rulebooks on the CPU, after freeing the device's batch memory.
  absl::Status MakeGeometryOnCpu();
  // chosen: by convolution.
  FeaturePass::Options PassOptions(const std::vector<ConvPlan>& chosen);
  // Runs all segments with exact sizes, and waits. chosen: by convolution.
  absl::Status RunSteps(const std::vector<ConvPlan>& chosen);
  // Fill the report, when the host has waited for the stream.
  absl::Status TakeConvTimes(const FeaturePass& pass) const;
  absl::Status TakeOutputs(FeaturePass& pass);
  absl::Status EndStage(Stage stage);
  // Reads the times of the stages up to `last`. The host has waited for the end of `last`.
  void TakeStageTimes(Stage last) const;

  const Program& program_;
  const BatchTasks tasks_;
  const RunLimits& limits_;
  const RunOptions& options_;
  const PlanTable& plans_;
  CudaExecutorState& state_;
  BatchReport& output_;
  // Parts of the state.
  ExecutionContext* const context_;
  DeviceGeometry& geometry_;
  DevicePoints& points_;

  BatchCapacities capacities_;  // none if the batch runs with exact sizes
  PointSampling sampling_;
  std::vector<int64_t> point_begin_;       // [samples + 1]
  std::vector<int32_t> rulebook_offsets_;  // DeviceSizes::Shape
  CapturedBatch new_batch_;                // captured in this batch and not kept yet
  BatchKey new_key_;                       // of its shape
};

}  // namespace voxserve
