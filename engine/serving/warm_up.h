#pragma once

// What a model's first request would pay: CUDA loads a kernel's code when it is launched first, and cuBLAS chooses its
// algorithms then.

#include "absl/status/status.h"
#include "engine/graph/executor.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/shared_memory.h"

namespace voxserve {

// Runs the program by these plans (null: its default) on clouds made here, of a few sizes. They are a disc of ground as
// a spinning LiDAR would see it, in the program's own voxel size and range. shared_memory is the one that the
// context was added to. The error is that of the first that failed.
absl::Status WarmUp(const Program& program, const PlanTable* plans, const RunLimits& limits, int64_t max_points,
                    SharedMemory& shared_memory, ExecutionContext& context);

}  // namespace voxserve
