#include "engine/serving/admission/latency_model.h"

#include <algorithm>
#include <utility>

#include "engine/serving/admission/served_model.h"

namespace voxserve {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Duration Bound(const ServedModel& model, size_t device, int64_t points, int64_t requests, int64_t batches = 1) {
  const LatencyFit& fit = *model.latency[device];
  return fit.Bound(fit.EstimateSize(points, requests, batches));
}

// Device time on one device.
struct Work {
  absl::Duration ahead;  // of all batches before the request's
  absl::Duration own;    // of the request's batch, which is the last of its version's
};

// own_ahead: what the request's own version runs before it.
absl::Duration OthersWorkOn(size_t device, int64_t max_bytes, const WaitingWork& waiting, absl::Duration own_ahead) {
  const ServedModel& model = *waiting.model;
  const BatchLimits limits = MemoryModel::LimitsOf(model, device, max_bytes);
  const int64_t full = limits.RequestsPerBatch(waiting.points, waiting.requests);
  const absl::Duration all = Bound(model, device, waiting.points, waiting.requests, DivideUp(waiting.requests, full));
  if (!waiting.turn) return all;
  const absl::Duration turns = absl::Seconds(waiting.turn->lead_seconds) + waiting.turn->weight_ratio * own_ahead;
  const absl::Duration batch = Bound(model, device, waiting.points / waiting.requests * full, full);
  return std::min(all, std::max(absl::ZeroDuration(), turns) + batch);
}

Work WorkOn(size_t device, int64_t max_bytes, absl::Span<const WaitingWork> ahead, const ServedModel& model,
            int64_t points) {
  Work work;
  int64_t own_points = points, own_requests = 1;
  absl::Duration own_ahead;
  for (const WaitingWork& waiting : ahead) {
    if (waiting.model != &model) continue;
    const BatchLimits limits = MemoryModel::LimitsOf(model, device, max_bytes);
    const int64_t full = limits.RequestsPerBatch(waiting.points + points, waiting.requests + 1);
    const int64_t batches = DivideUp(waiting.requests + 1, full) - 1;
    const int64_t mean = waiting.points / waiting.requests;
    if (batches > 0) own_ahead += Bound(model, device, mean * batches * full, batches * full, batches);
    own_requests = std::min(waiting.requests + 1, full);
    own_points += mean * (own_requests - 1);
  }
  work.own = Bound(model, device, own_points, own_requests);
  work.ahead = own_ahead;
  for (const WaitingWork& waiting : ahead) {
    if (waiting.model != &model) work.ahead += OthersWorkOn(device, max_bytes, waiting, own_ahead);
  }
  return work;
}

}  // namespace

absl::Duration LatencyModel::Expected(const ServedModel& model, size_t device, int64_t points, int64_t requests) {
  const LatencyFit& fit = *model.latency[device];
  return fit.Expected(fit.EstimateSize(points, requests));
}

absl::Duration LatencyModel::LongestAlone(const ServedModel& model, int64_t points) const {
  absl::Duration longest;
  for (size_t i = 0; i < devices_.size(); ++i) longest = std::max(longest, Expected(model, i, points, 1));
  return longest;
}

absl::Duration LatencyModel::BoundBesideOthers(const ServedModel& model, size_t device, int64_t points,
                                               int64_t requests) const {
  return (devices_[device].num_running() + 1) * Bound(model, device, points, requests);
}

bool LatencyModel::EndsSooner(const ServedModel& model, int64_t points, size_t device, size_t other) const {
  const auto rank = [&](size_t i) {
    const int side_by_side = devices_[i].num_running() + 1;
    return std::make_pair(side_by_side * Expected(model, i, points, 1), side_by_side);
  };
  return rank(device) < rank(other);
}

LatencyModel::Run LatencyModel::PredictRun(const ServedModel& model, int64_t points,
                                           absl::Span<const WaitingWork> ahead, const MaxBatchBytes& max_batch_bytes,
                                           absl::Time now) const {
  std::vector<absl::Duration> remaining, work_ahead;
  absl::Duration start = absl::InfiniteDuration(), run;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceLoad& device = devices_[i];
    if (device.num_workers() == 0) continue;
    const Work work = WorkOn(i, max_batch_bytes(i), ahead, model, points);
    remaining.push_back(device.Remaining(now));
    work_ahead.push_back(work.ahead);
    start = std::min(start, device.UntilFree(now) + device.num_workers() * work.ahead);
    run = std::max(run, device.num_workers() * work.own);
  }
  start = std::min(start, UntilStarted(remaining, work_ahead));
  return {.start = start, .end = start + run};
}

void LatencyModel::Start(size_t device, uint64_t batch, absl::Duration expected, absl::Time now) {
  devices_[device].Start(batch, expected, now);
}

absl::Duration LatencyModel::Finish(size_t device, uint64_t batch, absl::Time now) {
  return devices_[device].Finish(batch, now);
}

void LatencyModel::RemoveWorker(size_t device) { devices_[device].RemoveWorker(); }

int LatencyModel::num_idle_workers() const {
  int num_idle = 0;
  for (const DeviceLoad& device : devices_) num_idle += std::max(0, device.num_workers() - device.num_running());
  return num_idle;
}

}  // namespace voxserve
