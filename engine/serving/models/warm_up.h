#pragma once

// The functions of this file warm a model up: they do in advance what its first requests would have to wait for. CUDA
// loads a kernel's code when the kernel is first launched, and the algorithm of a matrix product is chosen when its
// shape first occurs.
//
// - Threads: both functions run on the caller's thread and wait for the device. No other thread may use the context or
//   the executor meanwhile.

#include "absl/status/status.h"
#include "engine/executor/device_arbiter.h"
#include "engine/executor/executor.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/admission/latency_fit.h"
#include "engine/serving/admission/memory_model.h"

namespace voxserve {

// Makes CUDA load the kernels of all matrix products that the program's convolutions may need on this context's GPU.
// One call serves all contexts of the GPU. Returns RESOURCE_EXHAUSTED if the GPU has no memory for the matrices. Does
// nothing on a CPU, which has no kernels to load.
absl::Status LoadKernels(const Program& program, ExecutionContext& context);

// Runs the program on synthetic clouds of several sizes, the largest first, since the choice of kernels depends on the
// size. options.plans: null for the program's default plans. If options.captures is set, each size runs until its batch
// is a replay, if it can be captured: a first request of about this size with the default outputs can then be one too.
// (A network that prunes may keep more of a real scan than of these clouds: its first request then runs twice. Or it
// keeps less, and its first thousand batches have more memory than they need.)
// - Clouds: each is like a spinning LiDAR's scan of a street, with the sensor in the middle of the program's range. No
//   cloud has more than max_points points.
// - Samples: if requests may ask for farthest point sampling, each size also runs once with a sampled cloud.
// - Memory: `arbiter` must be the one to which the executor's context was added. A size that does not fit beside the
//   memory of the other contexts is skipped.
// - Learning: `memory` and `latency` learn only from runs that are like usual requests. Runs with a sampled cloud, and
//   runs that return tensors in addition to labels or boxes, do not count. `latency` must be null if other work shares
//   the device, since the measured times would then be too long. Both learn before batches are captured.
// - Errors: returns the error of the first run that failed. Lack of memory does not keep smaller sizes from running;
//   any other error ends the warm-up.
absl::Status WarmUp(const Program& program, const RunOptions& options, const RunLimits& limits, int64_t max_points,
                    DeviceArbiter& arbiter, Executor& executor, MemoryModel& memory, LatencyFit* latency);

}  // namespace voxserve
