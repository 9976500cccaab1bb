#pragma once

// Runs programs on the CPU, with the threads of the context's pool.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

// Host memory for a batch's points as the network reads them (point_reader.h): [num_points, NumPointColumns] in
// context.input, and is_valid [num_points]. Samples without points in point_begin are passed over.
absl::Status ReadBatchPoints(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                             ExecutionContext& context, std::vector<uint8_t>& is_valid);

// How those points become voxels, but for outputs; and the levels of a segment. context: null for the first one.
kernels::VoxelizeParams ParamsOfPoints(const Program& program, const std::vector<int64_t>& point_begin,
                                       const std::vector<uint8_t>& is_valid, const ExecutionContext& context);
absl::Status MakeLevels(const Program& program, const ProgramSegment& segment, const StepContext* context,
                        kernels::ThreadPool& pool, BatchGeometry& geometry);

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(ExecutionContext* context) : context_(context) {}

  using Executor::Run;
  BatchOutput Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override;
  int64_t allocated_bytes() const override;

  // Of the batch that ran last; for tests and benchmarks.
  const BatchGeometry& geometry() const { return geometry_; }

 private:
  absl::Status RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        BatchOutput& output);
  // Of one segment; context as above.
  absl::Status MakeGeometry(const Program& program, const ProgramSegment& segment, const StepContext* context,
                            const RunLimits& limits, const std::vector<ConvPlan>& plans, BatchOutput& output);
  absl::Status RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                        const std::vector<ConvPlan>& plans, BatchOutput& output);

  ExecutionContext* const context_;
  BatchGeometry geometry_;
  std::vector<int64_t> point_begin_;  // [samples + 1]
  std::vector<uint8_t> is_valid_;     // [num_points]
  PointSampling sampling_;
  std::vector<Arena> later_features_;  // of the segments behind the first
};

}  // namespace voxserve
