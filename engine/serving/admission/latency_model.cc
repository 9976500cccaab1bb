#include "engine/serving/admission/latency_model.h"

#include <algorithm>
#include <utility>

#include "engine/serving/admission/served_model.h"

namespace voxserve {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

double Ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

absl::Duration Bound(const ServedModel& model, size_t device, const WorkSize& load, int64_t batches = 1) {
  const LatencyFit& fit = *model.on_device[device].latency;
  return fit.Bound(fit.EstimateSize(load.network_points(), load.requests, batches)) +
         model.on_device[device].selection->Bound(load, batches);
}

// Device time on one device.
struct Work {
  absl::Duration ahead;  // the batches that run before the request's batch
  absl::Duration own;    // the request's batch, the last one of its version
};

// own_ahead: the time of the request's own version before the request's batch.
absl::Duration OthersWorkOn(size_t device, int64_t max_bytes, const WaitingWork& waiting, absl::Duration own_ahead) {
  const ServedModel& model = *waiting.model;
  const BatchLimits limits = MemoryModel::LimitsOf(model, device, max_bytes);
  const WorkSize& load = waiting.load;
  const int64_t full = limits.RequestsPerBatch(load.points, load.requests);
  const absl::Duration all = Bound(model, device, load, DivideUp(load.requests, full));
  if (!waiting.turn) return all;
  const absl::Duration turns = absl::Seconds(waiting.turn->lead_seconds) + waiting.turn->weight_ratio * own_ahead;
  const absl::Duration batch = Bound(model, device, load.Scaled(Ratio(full, load.requests)));
  return std::min(all, std::max(absl::ZeroDuration(), turns) + batch);
}

Work WorkOn(size_t device, int64_t max_bytes, absl::Span<const WaitingWork> ahead, const ServedModel& model,
            const WorkSize& own) {
  Work work;
  WorkSize own_batch = own;
  absl::Duration own_ahead;
  for (const WaitingWork& waiting : ahead) {
    if (waiting.model != &model) continue;
    const WorkSize& load = waiting.load;
    const BatchLimits limits = MemoryModel::LimitsOf(model, device, max_bytes);
    const int64_t full = limits.RequestsPerBatch(load.points + own.points, load.requests + 1);
    const int64_t batches = DivideUp(load.requests + 1, full) - 1;
    if (batches > 0) own_ahead += Bound(model, device, load.Scaled(Ratio(batches * full, load.requests)), batches);
    own_batch += load.Scaled(Ratio(std::min(load.requests, full - 1), load.requests));
  }
  work.own = Bound(model, device, own_batch);
  work.ahead = own_ahead;
  for (const WaitingWork& waiting : ahead) {
    if (waiting.model != &model) work.ahead += OthersWorkOn(device, max_bytes, waiting, own_ahead);
  }
  return work;
}

}  // namespace

absl::Duration LatencyModel::Expected(const ServedModel& model, size_t device, const WorkSize& load) {
  const LatencyFit& fit = *model.on_device[device].latency;
  return fit.Expected(fit.EstimateSize(load.network_points(), load.requests)) +
         model.on_device[device].selection->Expected(load);
}

absl::Duration LatencyModel::LongestAlone(const ServedModel& model, const WorkSize& load) const {
  absl::Duration longest;
  for (size_t i = 0; i < devices_.size(); ++i) longest = std::max(longest, Expected(model, i, load));
  return longest;
}

absl::Duration LatencyModel::BoundBesideOthers(const ServedModel& model, size_t device, const WorkSize& load) const {
  return (devices_[device].num_running() + 1) * Bound(model, device, load);
}

bool LatencyModel::EndsSooner(const ServedModel& model, const WorkSize& load, size_t device, size_t other) const {
  const auto rank = [&](size_t i) {
    const int side_by_side = devices_[i].num_running() + 1;
    return std::make_pair(side_by_side * Expected(model, i, load), side_by_side);
  };
  return rank(device) < rank(other);
}

LatencyModel::Run LatencyModel::PredictRun(const ServedModel& model, const WorkSize& load,
                                           absl::Span<const WaitingWork> ahead, const MaxBatchBytes& max_batch_bytes,
                                           absl::Time now) const {
  std::vector<absl::Duration> remaining, work_ahead;
  absl::Duration start = absl::InfiniteDuration(), run;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceLoad& device = devices_[i];
    if (device.num_workers() == 0) continue;
    const Work work = WorkOn(i, max_batch_bytes(i), ahead, model, load);
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
