#pragma once

// Runs programs on a GPU, on the context's stream. The clouds' bytes go to the device as they came and are decoded
// there (device_points.h).
//
// The host lays out memory for as many sites as the batches before had a point, and a little more (SiteForecast), and
// launches all of a batch without waiting for a size: kernels read numbers of rows on the device. A batch that has more
// sites makes nothing of that; it runs again as the first one does and those that cannot do without sizes: the host
// waits once for the sizes of levels and rulebooks, by which it lays out memory and groups matrix products, and once
// for the result. A network that prunes has one segment more for every prune in a row (those side by side share one),
// and the host waits once more for the sizes of each.
//
// Where RunOptions ask for it, batches in rooms keep those of batches before that are like them, so that they lie in
// the same memory. The launches of steps that read no size on the host are captured then, and replayed for the batches
// that follow (captured_batches.h); what lies between them runs as it is, as does all that cannot be captured.
//
// Where the device has no room for a batch's levels and maps they are made on the CPU, which knows exact sizes, and
// uploaded (BatchOutput::geometry_on_cpu); not where scores on the device decide about sites. A batch that does not fit
// even so fails with RESOURCE_EXHAUSTED, and the context gives the memory of batches back.

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
  // The rooms for a batch; without capacities where the host must wait for its sizes. After LayOutPoints.
  SiteRooms ForecastRooms(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options);
  // Copies the points in, and runs the batch in its rooms. OUT_OF_RANGE, which is no answer, where they are too small
  // or the plan was that of another size.
  absl::Status RunInRooms(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                          SiteRooms rooms, BatchOutput& output);
  absl::Status RunWithSizes(const Program& program, BatchTasks tasks, const RunLimits& limits,
                            const RunOptions& options, BatchOutput& output);
  absl::Status CopyIn(const Program& program, BatchTasks tasks, const RunOptions& options, const SiteRooms& rooms);
  // Takes what was counted of the samples' points and voxels, and refuses those beyond limits.
  void TakeCounts(const Program& program, BatchTasks tasks, const RunLimits& limits, BatchOutput& output);
  absl::Status BeginGeometry(const Program& program, SiteRooms rooms);
  // Samples and voxelizes the points, makes the first segment's levels and rulebooks, and queues their sizes.
  absl::Status MakeGeometry(const Program& program, const RunLimits& limits, const PlanTable& plans, SiteRooms rooms);
  // Makes the levels and rulebooks of a segment behind the first, and waits for their sizes.
  absl::Status MakeLaterGeometry(const Program& program, const ProgramSegment& segment, const StepContext& context,
                                 const PlanTable& plans, BatchOutput& output);
  // Makes the only segment's on the CPU, after the device's memory has been given back.
  absl::Status MakeGeometryOnCpu(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                 const PlanTable& plans, BatchOutput& output);
  // plans: by convolution. In rooms, the sizes are taken at the end.
  absl::Status RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        const std::vector<ConvPlan>& plans, BatchOutput& output);
  // Runs the only segment, which has been laid out: as it is, or by replays. Captures it where its shape came before.
  absl::Status RunCaptured(const Program& program, FeaturePass& pass, const PlanTable& plans, BatchOutput& output);
  // Captures a range and launches it; runs it as it is where that fails, and returns false.
  absl::StatusOr<bool> Capture(const StepRange& steps, FeaturePass& pass);
  // When the stream has been waited for: keep what the batch was captured as, or do not.
  void KeepCaptured();
  void ForgetCaptured();
  absl::Status EndStage(Stage stage);
  // Reads the times of the stages up to `last`, whose end has been waited for.
  void TakeStageTimes(Stage last, BatchOutput& output) const;

  ExecutionContext* const context_;
  DeviceGeometry geometry_;
  bool logged_cpu_fallback_ = false;  // that maps were made on the CPU, once
  absl::flat_hash_map<const Program*, SiteForecast> forecasts_;
  KeptRooms kept_rooms_;
  CapturedBatches captured_;
  std::vector<CapturedPart> new_parts_;  // of the batch under way, which runs by them; dropped when it has ended
  bool is_capturing_ = false;            // the batch under way
  bool logged_no_capture_ = false;       // why something could not be captured, once
  std::vector<Event> step_ends_;
  DevicePoints points_;
  PointSampling sampling_;
  std::vector<int64_t> point_begin_;  // [samples + 1]
};

}  // namespace voxserve
