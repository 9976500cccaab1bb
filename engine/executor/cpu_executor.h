#pragma once

// Runs programs on the CPU, with the threads of the context's pool.

#include <cstdint>
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
  explicit CpuExecutor(ExecutionContext* context) : context_(context), geometry_(context->pool) {}

  using Executor::Run;
  BatchOutput Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override;
  int64_t allocated_bytes() const override;

  // The geometry of the batch that ran last; for tests and benchmarks.
  const BatchGeometry& geometry() const { return geometry_; }

 private:
  absl::Status RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchOutput& output);
  // Makes the levels and rulebooks of one segment. context: null for the first one.
  absl::Status MakeGeometry(const Program& program, const ProgramSegment& segment, const StepContext* context,
                            const RunLimits& limits, const RunOptions& options, BatchOutput& output);
  absl::Status RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchOutput& output);

  ExecutionContext* const context_;
  BatchGeometry geometry_;
  std::vector<int64_t> point_begin_;  // [samples + 1]
  HostPoints points_;
  PointSampling sampling_;
  std::vector<Arena> later_features_;  // of the segments behind the first
};

}  // namespace voxserve
