#pragma once

// Measures how long work on a stream takes, with CUDA events. The results are medians of many runs. A few runs before
// them are not counted.

#include <functional>
#include <vector>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

struct GpuTimes {
  // From the first launch on an idle GPU to the end of the last kernel, so the host's launches are included.
  double as_launched_ms = 0;
  // The GPU's own time: the GPU is kept waiting until everything is launched. A run in which it began earlier is
  // repeated. If that happens too often, a message on stderr says so.
  double back_to_back_ms = 0;
  // [num_steps] The time of each step, measured like back_to_back_ms. The event after each piece adds about a
  // microsecond to it.
  std::vector<double> step_ms;
};

// Call it after launching a piece: all launches since the last call, or since the beginning, belong to step `step`.
using MarkStep = std::function<void(int step)>;

// launch() only launches on the stream and does not wait. Pieces of the same step are added up. num_steps may be 0.
GpuTimes TimeOnGpu(cudaStream_t stream, int num_steps, const std::function<void(const MarkStep&)>& launch,
                   int num_runs = 50);

}  // namespace voxserve::bench
