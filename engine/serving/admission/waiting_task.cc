#include "engine/serving/admission/waiting_task.h"

#include <algorithm>
#include <tuple>

namespace voxserve {
namespace {

// A request costs at least this, in seconds: so clients take turns while nothing is known of the time that runs take.
constexpr double kLeastCost = 1e-4;

}  // namespace

WaitingTask::WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now)
    : level(task.task.priority),
      points(task.task.num_points()),
      bytes(task.task.num_bytes()),
      deadline(task.task.deadline) {
  const ModelConfig::Batching& batching = task.model->batching;
  if (deadline == absl::InfiniteFuture()) deadline = now + batching.default_timeout;
  const absl::Duration alone = latency.LongestAlone(*task.model, points);
  cost = std::max(kLeastCost, absl::ToDoubleSeconds(alone));
  const absl::Time longest_wait = now + batching.max_queue_delay;
  expiry = std::min(deadline, longest_wait);
  latest_start = std::min(deadline - alone, longest_wait);
  const absl::Duration head_start = std::max(absl::ZeroDuration(), now - task.task.waiting_since);
  // It does not pass the tasks whose deadlines are close: they were admitted without it.
  urgency = std::max(latest_start - head_start, std::min(latest_start, now + batching.max_queue_delay / 2));
  promotion = now + (expiry - now) / 2 - head_start;
}

bool MoreUrgent::operator()(const WaitingTask* a, const WaitingTask* b) const {
  return std::tie(a->level, a->urgency, a->arrival) < std::tie(b->level, b->urgency, b->arrival);
}

Load& Load::operator+=(const Load& other) {
  requests += other.requests;
  points += other.points;
  bytes += other.bytes;
  return *this;
}

Load& Load::operator-=(const Load& other) {
  requests -= other.requests;
  points -= other.points;
  bytes -= other.bytes;
  return *this;
}

void Load::Count(const WaitingTask& task, int64_t sign) {
  requests += sign;
  points += sign * task.points;
  bytes += sign * task.bytes;
}

}  // namespace voxserve
