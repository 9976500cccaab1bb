#pragma once

// How long work on a stream takes, by CUDA events: medians of many runs after a few that are not counted.

#include <functional>
#include <vector>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

struct GpuTimes {
  // From the first launch on an idle GPU to the end of the last kernel: the host's launches are part of it.
  double as_launched_ms = 0;
  // The same where the GPU is kept waiting until all is launched: the GPU's own time. Runs in which it began before
  // that are repeated; where that does not end, stderr says so.
  double back_to_back_ms = 0;
  // [num_steps] of the latter, with an event after each piece, which costs each about a microsecond.
  std::vector<double> step_ms;
};

// Says: all launches since the last call, or since the beginning, belong to step `step`.
using MarkStep = std::function<void(int step)>;

// launch: only launches on the stream; it does not wait. Pieces of the same step are added up. num_steps may be 0.
GpuTimes TimeOnGpu(cudaStream_t stream, int num_steps, const std::function<void(const MarkStep&)>& launch,
                   int num_runs = 50);

}  // namespace voxserve::bench
