#include "engine/serving/admission/run_prediction.h"

#include <algorithm>

namespace voxserve {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Device time on one device.
struct Work {
  absl::Duration ahead;  // of all batches before the task's
  absl::Duration own;    // of the task's batch, which is the last of its version's
};

Work WorkOn(size_t device, int64_t max_bytes, const TaskQueue& queue, const ServedModel& model,
            const WaitingTask& task) {
  Work work;
  int64_t own_points = task.points, own_requests = 1;
  for (const auto& [other, version] : queue.versions()) {
    const TaskQueue::Load load = version.UpTo(task.level);
    if (load.requests == 0) continue;
    const BatchLimits limits(*other, device, max_bytes);
    const BatchCosts costs(*other, device);
    if (other != &model) {
      const int64_t full = limits.RequestsPerBatch(load.points, load.requests);
      work.ahead += costs.Bound(load.points, load.requests, DivideUp(load.requests, full));
      continue;
    }
    const int64_t full = limits.RequestsPerBatch(load.points + task.points, load.requests + 1);
    const int64_t batches = DivideUp(load.requests + 1, full) - 1;
    const int64_t mean = load.points / load.requests;
    if (batches > 0) work.ahead += costs.Bound(mean * batches * full, batches * full, batches);
    own_requests = std::min(load.requests + 1, full);
    own_points += mean * (own_requests - 1);
  }
  work.own = BatchCosts(model, device).Bound(own_points, own_requests);
  return work;
}

}  // namespace

RunPrediction PredictRun(const TaskQueue& queue, const std::vector<DeviceLoad>& devices,
                         const MaxBatchBytes& max_batch_bytes, const ServedModel& model, const WaitingTask& task,
                         absl::Time now) {
  std::vector<absl::Duration> remaining, ahead;
  absl::Duration start = absl::InfiniteDuration(), run;
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceLoad& device = devices[i];
    if (device.num_workers() == 0) continue;
    const Work work = WorkOn(i, max_batch_bytes(i), queue, model, task);
    remaining.push_back(device.Remaining(now));
    ahead.push_back(work.ahead);
    start = std::min(start, device.UntilFree(now) + device.num_workers() * work.ahead);
    run = std::max(run, device.num_workers() * work.own);
  }
  start = std::min(start, UntilStarted(remaining, ahead));
  return {.start = start, .end = start + run};
}

}  // namespace voxserve
