#pragma once

// CpuExecutor runs programs on the CPU, on the threads of the context's pool and in the context's host memory.
//
// If a batch does not fit the memory, the executor frees all memory that it holds. If it held memory of earlier
// batches, it then runs the batch once more. A batch that still does not fit fails with RESOURCE_EXHAUSTED
// (BatchReport::host_is_full).

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/executor/host_points.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(ExecutionContext* context);

  using Executor::Run;
  BatchReport Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override;
  int64_t allocated_bytes() const override { return context_->memory->held_bytes(); }
  void ReleaseHostMemory() override;

  // The geometry of the batch that ran last; for tests and benchmarks.
  const BatchGeometry& geometry() const { return *geometry_; }

 private:
  BatchReport RunOnce(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options);
  absl::Status RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchReport& output);
  // Makes the levels and rulebooks of one segment. context: null for the first one.
  absl::Status MakeGeometry(const Program& program, const ProgramSegment& segment, const StepContext* context,
                            const RunLimits& limits, const RunOptions& options, BatchReport& output);
  absl::Status RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchReport& output);

  // Returns the bytes that the batch would have needed in an empty context.
  BatchBytes NeededBytes() const;

  ExecutionContext* const context_;
  std::optional<BatchGeometry> geometry_;  // has a value at all times
  std::optional<HostPoints> points_;       // has a value at all times
  std::vector<int64_t> point_begin_;       // [samples + 1]
  PointSampling sampling_;
  std::vector<Arena> later_features_;  // the features of each segment after the first
  int64_t feature_bytes_ = 0;          // of the current batch
};

}  // namespace voxserve
