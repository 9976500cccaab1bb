#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "tests/bench/event_timer.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {
namespace {

using support::ExpectCudaSuccess;

constexpr int kWarmUpRuns = 5;
// The GPU is delayed by this multiple of the time that launching took in the warm-up. If the delay was too short, it is
// doubled.
constexpr double kLaunchAllowance = 2.0;
constexpr int64_t kLeastDelayNs = 200'000, kMostFirstDelayNs = 20'000'000, kMostDelayNs = 80'000'000;
constexpr int kMostDiscardedRuns = 6;

__device__ uint64_t NanosecondClock() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

__global__ void DelayKernel(uint64_t nanoseconds) {
  const uint64_t begin = NanosecondClock();
  while (NanosecondClock() - begin < nanoseconds) {
  }
}

// The CUDA events of one run: one at its begin and one after each step. The next run uses the same events.
class EventLog {
 public:
  explicit EventLog(cudaStream_t stream) : stream_(stream) {}
  ~EventLog() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void Begin() {
    steps_.clear();
    Record();
  }
  void Mark(int step) {
    steps_.push_back(step);
    Record();
  }
  // Returns true if the GPU has reached the event with which the log begins.
  bool HasBegun() const {
    const cudaError_t status = cudaEventQuery(events_.front());
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears the status, which launchers would return as an error
      return false;
    }
    ExpectCudaSuccess(status);
    return true;
  }
  // Returns the milliseconds of each step. The caller has waited for the stream.
  std::vector<double> StepMs(int num_steps) const {
    std::vector<double> ms(static_cast<size_t>(num_steps), 0);
    for (size_t i = 0; i < steps_.size(); ++i) {
      float elapsed = 0;
      ExpectCudaSuccess(cudaEventElapsedTime(&elapsed, events_[i], events_[i + 1]));
      ms.at(static_cast<size_t>(steps_[i])) += elapsed;
    }
    return ms;
  }

 private:
  void Record() {
    const size_t at = steps_.size();
    if (events_.size() <= at) {
      events_.push_back(nullptr);
      ExpectCudaSuccess(cudaEventCreate(&events_.back()));
    }
    ExpectCudaSuccess(cudaEventRecord(events_[at], stream_));
  }

  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::vector<int> steps_;  // step i ended at event i + 1
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

GpuTimes TimeOnGpu(cudaStream_t stream, int num_steps, const std::function<void(const MarkStep&)>& launch,
                   int num_runs) {
  EventLog log(stream);
  const auto wait = [&] { ExpectCudaSuccess(cudaStreamSynchronize(stream)); };
  const MarkStep ignore = [](int) {};
  const MarkStep mark = [&](int step) { log.Mark(step); };

  double launching_ns = 0;
  for (int run = 0; run < kWarmUpRuns; ++run) {
    log.Begin();
    const auto begin = std::chrono::steady_clock::now();
    launch(mark);
    const std::chrono::duration<double, std::nano> launching = std::chrono::steady_clock::now() - begin;
    if (run > 0) launching_ns = std::max(launching_ns, launching.count());  // the first run loads kernels
    wait();
  }
  const auto first_delay_ns =
      std::clamp(static_cast<int64_t>(kLaunchAllowance * launching_ns), kLeastDelayNs, kMostFirstDelayNs);

  // Queues a run behind a delay. If the GPU began the run before all of it was queued, queues it again behind a longer
  // delay, until kMostDiscardedRuns have been discarded.
  int64_t delay_ns = first_delay_ns;
  int num_discarded = 0;
  const auto queue_held = [&](const std::function<void()>& queue) {
    while (true) {
      DelayKernel<<<1, 1, 0, stream>>>(static_cast<uint64_t>(delay_ns));
      ExpectCudaSuccess(cudaPeekAtLastError());
      log.Begin();
      queue();
      if (!log.HasBegun() || num_discarded == kMostDiscardedRuns) return;
      wait();
      delay_ns = std::min(2 * delay_ns, kMostDelayNs);
      if (++num_discarded == kMostDiscardedRuns) {
        std::fprintf(stderr, "the GPU could not be held until all was queued: its times may have launches in them\n");
        delay_ns = first_delay_ns;
      }
    }
  };

  // Returns the median time of a run, from begin to end.
  const auto time = [&](bool is_delayed) {
    std::vector<double> ms;
    for (int run = 0; run < num_runs; ++run) {
      const auto queue = [&] {
        launch(ignore);
        log.Mark(0);
      };
      if (is_delayed) {
        queue_held(queue);
      } else {
        log.Begin();
        queue();
      }
      wait();
      ms.push_back(log.StepMs(1)[0]);
    }
    return Median(std::move(ms));
  };
  GpuTimes times;
  times.as_launched_ms = time(false);
  times.back_to_back_ms = time(true);
  if (num_steps == 0) return times;

  std::vector<std::vector<double>> ms(static_cast<size_t>(num_steps));
  for (int run = 0; run < num_runs; ++run) {
    queue_held([&] { launch(mark); });
    wait();
    const std::vector<double> of_run = log.StepMs(num_steps);
    for (size_t step = 0; step < ms.size(); ++step) ms[step].push_back(of_run[step]);
  }
  for (std::vector<double>& of_step : ms) times.step_ms.push_back(Median(std::move(of_step)));
  return times;
}

}  // namespace voxserve::bench
