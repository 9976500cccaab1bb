#pragma once

// CudaExecutor runs programs on a GPU, on the context's stream. Each cloud's bytes are copied to the device unchanged
// and decoded there (device_points.h).
//
// - Normally the host launches the whole batch without waiting for a size. It lays out memory by a forecast: the sites
//   per point of earlier batches, and a little more (SiteForecast). Kernels read the row counts on the device.
// - A batch that has more sites than forecast discards its result and runs again with exact sizes. So do a program's
//   first batch and plans that need sizes on the host: the host waits once for the sizes of levels and rulebooks, lays
//   out memory and groups matrix products by them, and waits once more for the result.
// - A network that prunes has one more segment for each prune in a row (parallel prunes share one). The host waits once
//   more for the sizes of each segment.
// - If the device has no room for a batch's levels and rulebooks, they are made on the CPU, which knows exact sizes,
//   and uploaded (BatchOutput::geometry_on_cpu). A program with several segments cannot do that, since its later levels
//   depend on scores on the device.
// - A batch that still does not fit fails with RESOURCE_EXHAUSTED, and the context frees its batch memory.
//
// If RunOptions ask for it, batches in rooms (capacities, site_rooms.h) reuse the rooms of earlier batches of their
// kind, so that they lie in the same memory. The launches of steps that read no size on the host are then captured, and
// replayed for the batches that follow (captured_batches.h). Everything else runs as it is.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/executor/captured_batches.h"
#include "engine/executor/device_points.h"
#include "engine/executor/executor.h"
#include "engine/executor/feature_pass.h"
#include "engine/executor/kept_rooms.h"
#include "engine/executor/site_forecast.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_geometry.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/stage.h"

namespace voxserve {

class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(ExecutionContext* context)
      : context_(context), captured_({.budget = context->memory->budget()}) {}

  using Executor::Run;
  BatchOutput Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override;
  int64_t allocated_bytes() const override;
  void ReleaseHostMemory() override;

  // The geometry of the batch that ran last; for tests and benchmarks.
  const DeviceGeometry& geometry() const { return geometry_; }
  const CapturedBatches& captured() const { return captured_; }

 private:
  absl::Status RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchOutput& output);
  // Returns the capacities for a batch; none where the host must wait for its sizes. Called after LayOutPoints.
  SiteRooms ForecastRooms(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options);
  // Copies the points in, and runs the batch within the capacities `rooms`. If they are too small, or the chosen plan
  // is for another number of voxels, returns OUT_OF_RANGE. The caller then runs the batch again; a client never sees
  // this error.
  absl::Status RunInRooms(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                          SiteRooms rooms, BatchOutput& output);
  absl::Status RunWithSizes(const Program& program, BatchTasks tasks, const RunLimits& limits,
                            const RunOptions& options, BatchOutput& output);
  absl::Status CopyIn(const Program& program, BatchTasks tasks, const RunOptions& options, const SiteRooms& rooms);
  // Writes the counts of points and voxels into the samples, and refuses those beyond limits.
  void TakeCounts(const Program& program, BatchTasks tasks, const RunLimits& limits, BatchOutput& output);
  absl::Status BeginGeometry(const Program& program, SiteRooms rooms);
  // Samples and voxelizes the points, makes the first segment's levels and rulebooks, and queues their sizes.
  absl::Status MakeGeometry(const Program& program, const RunLimits& limits, const PlanTable& plans, SiteRooms rooms);
  // Makes the levels and rulebooks of a segment after the first, and waits for their sizes.
  absl::Status MakeLaterGeometry(const Program& program, const ProgramSegment& segment, const StepContext& context,
                                 const PlanTable& plans, BatchOutput& output);
  // Makes the only segment's levels and rulebooks on the CPU, after freeing the device's batch memory.
  absl::Status MakeGeometryOnCpu(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                 const PlanTable& plans, BatchOutput& output);
  // plans: by convolution. With forecast capacities, the sizes are read at the end.
  absl::Status RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        const std::vector<ConvPlan>& plans, BatchOutput& output);
  // Runs the only segment, whose memory is laid out. Replays captured ranges if there are some, and captures them if
  // the shape came before.
  absl::Status RunCaptured(const Program& program, FeaturePass& pass, const PlanTable& plans, BatchOutput& output);
  // Captures a range and launches it. If that fails, runs the steps uncaptured and returns false.
  absl::StatusOr<bool> Capture(const StepRange& steps, FeaturePass& pass);
  // Keeps or declines what the batch captured. Called when the host has waited for the stream.
  void KeepCaptured();
  void ForgetCaptured();
  absl::Status EndStage(Stage stage);
  // Reads the times of the stages up to `last`. The host has waited for the end of `last`.
  void TakeStageTimes(Stage last, BatchOutput& output) const;

  ExecutionContext* const context_;
  DeviceGeometry geometry_;
  bool logged_cpu_fallback_ = false;  // logs once that maps were made on the CPU
  absl::flat_hash_map<const Program*, SiteForecast> forecasts_;
  KeptRooms kept_rooms_;
  CapturedBatches captured_;
  std::vector<CapturedPart> new_parts_;  // captured in the batch under way, which replays them
  bool is_capturing_ = false;            // during a batch: its steps are being captured
  bool logged_no_capture_ = false;       // a failed capture is logged only once
  std::vector<Event> step_ends_;
  DevicePoints points_;
  PointSampling sampling_;
  std::vector<int64_t> point_begin_;  // [samples + 1]
};

}  // namespace voxserve
