#include "engine/serving/admission/waiting_task.h"

#include <algorithm>
#include <tuple>

namespace voxserve {
namespace {

// The least cost of a request in seconds, so that clients take turns while nothing is known about the time of runs.
constexpr double kLeastCost = 1e-4;

}  // namespace

WaitingTask::WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now)
    : level(task.task.priority), load(WorkSize::Of(task.task)), deadline(task.task.deadline) {
  const ModelConfig::Batching& batching = task.model->batching;
  if (deadline == absl::InfiniteFuture()) deadline = now + batching.default_timeout;
  const absl::Duration alone = latency.LongestAlone(*task.model, load);
  cost = std::max(kLeastCost, absl::ToDoubleSeconds(alone));
  const absl::Time longest_wait = now + batching.max_queue_delay;
  expiry = std::min(deadline, longest_wait);
  latest_start = std::min(deadline - alone, longest_wait);
  const absl::Duration head_start = std::max(absl::ZeroDuration(), now - task.task.waiting_since);
  // Bounds the head start, so that the task does not pass tasks with close deadlines, which were admitted without it.
  urgency = std::max(latest_start - head_start, std::min(latest_start, now + batching.max_queue_delay / 2));
  promotion = now + (expiry - now) / 2 - head_start;
}

bool MoreUrgent::operator()(const WaitingTask* a, const WaitingTask* b) const {
  return std::tie(a->level, a->urgency, a->arrival) < std::tie(b->level, b->urgency, b->arrival);
}

}  // namespace voxserve
