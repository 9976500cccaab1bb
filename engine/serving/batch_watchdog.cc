#include "engine/serving/batch_watchdog.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "engine/base/logging.h"

namespace voxserve {
namespace {

constexpr absl::Duration kMaxPeriod = absl::Seconds(1);
constexpr absl::Duration kMinPeriod = absl::Milliseconds(1);
// The watchdog looks this many times per limit. So it finds a stuck batch late by at most this part of the limit.
constexpr int kLooksPerLimit = 8;
// Without a prediction the limit is this many times least_time: CPUs are not warmed up, and large clouds may follow
// small ones.
constexpr int kUnknownTimes = 10;
// When the watchdog looks late, it adds at most this many periods to a batch's time.
constexpr int kMaxPeriodsPerLook = 2;

}  // namespace

// The data of one report on a stuck batch. Look copies it under the lock, since the batch's Watch may be destroyed
// while the report is written.
struct BatchWatchdog::Stuck {
  std::string model;
  int64_t version = 0;
  std::string device;
  int64_t requests = 0;
  int64_t points = 0;
  absl::Duration predicted;
  absl::Duration elapsed;
};

absl::Duration BatchWatchdog::SteadyClock() { return SteadyNow() - absl::UnixEpoch(); }

BatchWatchdog::BatchWatchdog(Options options)
    : options_(std::move(options)),
      period_(std::clamp(options_.least_time / kLooksPerLimit, kMinPeriod, kMaxPeriod)),
      looked_(options_.now()) {
  if (!options_.has_thread) return;
  thread_.emplace(period_, [this] {
    Look();
    return period_;
  });
}

BatchWatchdog::Watch::Watch(BatchWatchdog* watchdog, const Batch& batch) : watchdog_(watchdog), batch_(batch) {
  if (watchdog_ == nullptr) return;
  begin_ = watchdog_->options_.now();
  absl::MutexLock lock(&watchdog_->mutex_);
  watchdog_->watches_.push_back(this);
}

BatchWatchdog::Watch::~Watch() {
  if (watchdog_ == nullptr) return;
  absl::MutexLock lock(&watchdog_->mutex_);
  std::vector<Watch*>& watches = watchdog_->watches_;
  watches.erase(std::find(watches.begin(), watches.end(), this));
}

void BatchWatchdog::Look() {
  std::vector<Stuck> found;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = options_.now();
    const absl::Duration looked = std::exchange(looked_, now);
    for (Watch* watch : watches_) {
      watch->elapsed_ += std::min(now - std::max(looked, watch->begin_), kMaxPeriodsPerLook * period_);
    }
    for (const Watch* watch : watches_) {
      const Batch& batch = watch->batch_;
      if (watch->is_stuck_ || watch->elapsed_ <= LimitOf(batch)) continue;
      found.push_back({.model = batch.model->name,
                       .version = batch.model->version,
                       .device = std::string(batch.device),
                       .requests = batch.requests,
                       .points = batch.points,
                       .predicted = batch.predicted,
                       .elapsed = watch->elapsed_});
    }
    // From here on nothing is allocated: a batch that no look could report is found again.
    for (Watch* watch : watches_) watch->is_stuck_ = watch->is_stuck_ || watch->elapsed_ > LimitOf(watch->batch_);
  }
  for (const Stuck& stuck : found) Report(stuck);
}

absl::Duration BatchWatchdog::LimitOf(const Batch& batch) const {
  if (batch.predicted == absl::ZeroDuration()) return kUnknownTimes * options_.least_time;
  return std::max(options_.least_time, options_.factor * batch.predicted);
}

void BatchWatchdog::Report(const Stuck& stuck) const {
  try {
    Log(LogLevel::kError, "a batch is stuck",
        {{"model", stuck.model},
         {"version", stuck.version},
         {"device", stuck.device},
         {"requests", stuck.requests},
         {"points", stuck.points},
         {"predicted_ms", absl::ToDoubleMilliseconds(stuck.predicted)},
         {"elapsed_ms", absl::ToDoubleMilliseconds(stuck.elapsed)}});
    if (options_.observer != nullptr) options_.observer->OnStuckBatch(stuck.model, stuck.device);
  } catch (const std::bad_alloc&) {  // then the log or the metrics lack it; the process ends all the same
  }
  if (options_.on_stuck) options_.on_stuck();
}

}  // namespace voxserve
