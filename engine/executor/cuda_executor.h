#pragma once

// CudaExecutor runs programs on a GPU, on the context's stream. It keeps what its batches share (CudaExecutorState) and
// makes a CudaBatch for each; cuda_batch.h tells how a batch runs.

#include <cstdint>

#include "engine/executor/captured_batches.h"
#include "engine/executor/cuda_batch.h"
#include "engine/executor/executor.h"
#include "engine/geometry/device_geometry.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(ExecutionContext* context)
      : state_{.context = context, .captured = CapturedBatches({.budget = context->memory->budget()})} {}

  using Executor::Run;
  BatchReport Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                  const RunOptions& options) override;
  int64_t allocated_bytes() const override;
  void ReleaseHostMemory() override;

  // The geometry of the batch that ran last; for tests and benchmarks.
  const DeviceGeometry& geometry() const { return state_.geometry; }
  const CapturedBatches& captured() const { return state_.captured; }

 private:
  CudaExecutorState state_;
};

}  // namespace voxserve
