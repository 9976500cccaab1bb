#pragma once

// Warm-up does in advance what a model's first request would wait for: CUDA loads a kernel's code at its first launch,
// and cuBLAS chooses its algorithms then.

#include "absl/status/status.h"
#include "engine/executor/device_arbiter.h"
#include "engine/executor/executor.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/admission/latency_fit.h"
#include "engine/serving/admission/memory_model.h"

namespace voxserve {

// Makes CUDA load the kernels of the matrix products that the program's convolutions may need on this context's GPU.
// Once is enough for all contexts of the GPU. RESOURCE_EXHAUSTED without memory for it. On a CPU there is nothing to
// load.
absl::Status LoadKernels(const Program& program, ExecutionContext& context);

// Runs the program by these plans (null: its default) on clouds of several sizes, since the choice of kernels depends
// on the size.
// - The clouds are what a spinning LiDAR sees on a street, around the middle of the program's range.
// - If requests may ask for a sample of farthest points, each size also runs once with one.
// - `arbiter` is the one that the executor's context was added to. Sizes that do not fit beside other contexts' memory
//   are skipped.
// - `memory` and `latency` learn from the runs, except those with tensors beside labels or boxes. latency is null if
//   other work shares the device.
// - Returns the error of the first run that failed.
absl::Status WarmUp(const Program& program, const PlanTable* plans, const RunLimits& limits, int64_t max_points,
                    DeviceArbiter& arbiter, Executor& executor, MemoryModel& memory, LatencyFit* latency);

}  // namespace voxserve
