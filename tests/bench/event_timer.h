#pragma once

// Measures with CUDA events how long work on a stream takes. The results are medians of many runs. Five warm-up runs
// come first and are not counted.

#include <functional>
#include <vector>

#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

struct GpuTimes {
  // The time from the first launch on an idle GPU to the end of the last kernel. It includes waits for the host to
  // launch the next kernel.
  double as_launched_ms = 0;
  // The time that the GPU needs when no kernel waits for the host: a delay kernel holds the stream until everything is
  // launched. If the GPU began before that, the run is repeated behind a longer delay. After six such runs a message
  // on stderr says that the times may include launches, and no more runs are repeated.
  double back_to_back_ms = 0;
  // [num_steps] The time of each step, measured like back_to_back_ms. Each mark records an event, which adds about a
  // microsecond to its step.
  std::vector<double> step_ms;
};

// A function that `launch` calls after it has launched a part of the work: all launches since the last call, or since
// the beginning, belong to step `step`.
using MarkStep = std::function<void(int step)>;

// Measures the work that `launch` launches on the stream. `launch` must not wait, and is called again for every run.
// Parts with the same step are added up. Steps are numbered from 0 to num_steps - 1. If num_steps is 0, step_ms is
// empty. An error of CUDA ends the program.
GpuTimes TimeOnGpu(cudaStream_t stream, int num_steps, const std::function<void(const MarkStep&)>& launch,
                   int num_runs = 50);

}  // namespace voxserve::bench
