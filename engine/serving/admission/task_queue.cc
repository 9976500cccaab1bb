#include "engine/serving/admission/task_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace voxserve {
namespace {

void Count(TaskQueue::Load& load, const WaitingTask& task, int64_t sign) {
  load.requests += sign;
  load.points += sign * task.points;
  load.bytes += sign * task.bytes;
}

int64_t BytesOf(const InferTask& task) {
  if (task.sweeps.empty()) return static_cast<int64_t>(task.cloud.bytes().size());
  int64_t bytes = 0;
  for (const PlacedSweep& placed : task.sweeps) bytes += static_cast<int64_t>(placed.sweep->cloud.bytes().size());
  return bytes;
}

}  // namespace

WaitingTask::WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now)
    : level(task.task.priority),
      points(task.task.num_points()),
      bytes(BytesOf(task.task)),
      deadline(task.task.deadline) {
  const ModelConfig::Batching& batching = task.model->batching;
  if (deadline == absl::InfiniteFuture()) deadline = now + batching.default_timeout;
  const absl::Time longest_wait = now + batching.max_queue_delay;
  expiry = std::min(deadline, longest_wait);
  latest_start = std::min(deadline - latency.LongestAlone(*task.model, points), longest_wait);
  const absl::Duration head_start = std::max(absl::ZeroDuration(), now - task.task.waiting_since);
  // It does not pass the tasks whose deadlines are close: they were admitted without it.
  urgency = std::max(latest_start - head_start, std::min(latest_start, now + batching.max_queue_delay / 2));
  promotion = now + (expiry - now) / 2 - head_start;
}

bool TaskQueue::MoreUrgent::operator()(const WaitingTask* a, const WaitingTask* b) const {
  return std::tie(a->level, a->urgency, a->arrival) < std::tie(b->level, b->urgency, b->arrival);
}

bool TaskQueue::Earlier::operator()(const WaitingTask* a, const WaitingTask* b) const {
  return std::tie(a->*time, a->arrival) < std::tie(b->*time, b->arrival);
}

WaitingTask* TaskQueue::Add(std::unique_ptr<WaitingTask> task) {
  WaitingTask* added = task.get();
  added->arrival = next_arrival_++;
  owned_[added->queued.ticket] = std::move(task);
  by_expiry_.insert(added);
  Link(added);
  return added;
}

std::unique_ptr<WaitingTask> TaskQueue::Remove(WaitingTask* task) {
  Unlink(task);
  by_expiry_.erase(task);
  auto owner = owned_.extract(task->queued.ticket);
  return std::move(owner.mapped());
}

void TaskQueue::Link(WaitingTask* task) {
  const int priority = task->queued.task.priority;
  Version& version = versions_[task->queued.model.get()];
  version.tasks.insert(task);
  if (version.by_level.size() <= static_cast<size_t>(priority)) version.by_level.resize(priority + 1);
  Count(version.by_level[priority], *task, 1);
  Level& level = models_[task->queued.model->info.name][priority];
  level.tasks.insert(task);
  Count(level.load, *task, 1);
  if (task->level > 0) by_promotion_.insert(task);
}

void TaskQueue::Unlink(WaitingTask* task) {
  const int priority = task->queued.task.priority;
  const auto version = versions_.find(task->queued.model.get());
  version->second.tasks.erase(task);
  Count(version->second.by_level[priority], *task, -1);
  if (version->second.tasks.empty()) versions_.erase(version);
  const auto model = models_.find(task->queued.model->info.name);
  const auto level = model->second.find(priority);
  level->second.tasks.erase(task);
  Count(level->second.load, *task, -1);
  if (level->second.tasks.empty()) model->second.erase(level);
  if (model->second.empty()) models_.erase(model);
  if (task->level > 0) by_promotion_.erase(task);
}

WaitingTask* TaskQueue::Find(uint64_t ticket) const {
  const auto it = owned_.find(ticket);
  return it == owned_.end() ? nullptr : it->second.get();
}

std::vector<WaitingWork> TaskQueue::WorkUpTo(int level) const {
  std::vector<WaitingWork> work;
  for (const auto& [model, version] : versions_) {
    WaitingWork sum{.model = model};
    for (size_t i = 0; i < version.by_level.size() && static_cast<int>(i) <= level; ++i) {
      sum.points += version.by_level[i].points;
      sum.requests += version.by_level[i].requests;
    }
    if (sum.requests > 0) work.push_back(sum);
  }
  return work;
}

WaitingTask* TaskQueue::MostUrgent() const {
  WaitingTask* most_urgent = nullptr;
  for (const auto& [model, version] : versions_) {
    WaitingTask* first = *version.tasks.begin();
    if (most_urgent == nullptr || MoreUrgent()(first, most_urgent)) most_urgent = first;
  }
  return most_urgent;
}

TaskQueue::Load TaskQueue::LessUrgentThan(const std::string& name, int level) const {
  Load sum;
  const auto model = models_.find(name);
  if (model == models_.end()) return sum;
  for (auto it = model->second.upper_bound(level); it != model->second.end(); ++it) {
    sum.requests += it->second.load.requests;
    sum.points += it->second.load.points;
    sum.bytes += it->second.load.bytes;
  }
  return sum;
}

WaitingTask* TaskQueue::LeastUrgent(const std::string& name) const {
  const auto model = models_.find(name);
  return model == models_.end() ? nullptr : *model->second.rbegin()->second.tasks.rbegin();
}

void TaskQueue::Promote(absl::Time now) {
  while (!by_promotion_.empty() && (*by_promotion_.begin())->promotion <= now) {
    WaitingTask* task = *by_promotion_.begin();
    Unlink(task);
    task->level = 0;
    Link(task);
  }
}

}  // namespace voxserve
