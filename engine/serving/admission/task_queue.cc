#include "engine/serving/admission/task_queue.h"

#include <tuple>
#include <utility>

namespace voxserve {

bool TaskQueue::Earlier::operator()(const WaitingTask* a, const WaitingTask* b) const {
  return std::tie(a->*time, a->arrival) < std::tie(b->*time, b->arrival);
}

WaitingTask* TaskQueue::Add(std::unique_ptr<WaitingTask> task) noexcept {
  WaitingTask* added = task.get();
  added->arrival = next_arrival_++;
  owned_[added->queued.ticket] = std::move(task);
  by_expiry_.insert(added);
  Count(added);
  EnterLevel(added);
  return added;
}

std::unique_ptr<WaitingTask> TaskQueue::Remove(WaitingTask* task) noexcept {
  LeaveLevel(task, std::nullopt);
  return Release(task);
}

std::unique_ptr<WaitingTask> TaskQueue::Run(WaitingTask* task, double seconds) noexcept {
  LeaveLevel(task, seconds);
  return Release(task);
}

void TaskQueue::Correct(const std::string& model, int level, double seconds) {
  if (const auto turns = levels_.find(level); turns != levels_.end()) turns->second.Correct(model, seconds);
}

std::unique_ptr<WaitingTask> TaskQueue::Release(WaitingTask* task) {
  Discount(task);
  by_expiry_.erase(task);
  auto owner = owned_.extract(task->queued.ticket);
  return std::move(owner.mapped());
}

void TaskQueue::Count(WaitingTask* task) {
  const int priority = task->priority();
  Version& version = versions_[task->model()];
  ++version.num_tasks;
  if (version.by_priority.size() <= static_cast<size_t>(priority)) version.by_priority.resize(priority + 1);
  version.by_priority[priority] += task->load;
  Priority& counts = models_[task->model()->info.name][priority];
  Hold& hold = counts.by_client[task->client()];
  counts.all += task->load;
  hold.load += task->load;
  hold.tasks.insert(task);
}

void TaskQueue::Discount(WaitingTask* task) {
  const int priority = task->priority();
  const auto version = versions_.find(task->model());
  version->second.by_priority[priority] -= task->load;
  if (--version->second.num_tasks == 0) versions_.erase(version);
  const auto model = models_.find(task->model()->info.name);
  const auto counts = model->second.find(priority);
  const auto client = counts->second.by_client.find(task->client());
  Hold& hold = client->second;
  counts->second.all -= task->load;
  hold.load -= task->load;
  hold.tasks.erase(task);
  if (hold.tasks.empty()) counts->second.by_client.erase(client);
  if (counts->second.by_client.empty()) model->second.erase(counts);
  if (model->second.empty()) models_.erase(model);
}

void TaskQueue::EnterLevel(WaitingTask* task) {
  levels_[task->level].Add(task);
  ++versions_[task->model()].num_by_level[task->level];
  if (task->level > 0) by_promotion_.insert(task);
}

void TaskQueue::LeaveLevel(WaitingTask* task, std::optional<double> seconds) {
  const auto level = levels_.find(task->level);
  if (seconds) {
    level->second.Run(task, *seconds);
  } else {
    level->second.Remove(task);
  }
  if (level->second.empty()) levels_.erase(level);
  std::map<int, int64_t>& num_by_level = versions_[task->model()].num_by_level;
  if (--num_by_level[task->level] == 0) num_by_level.erase(task->level);
  if (task->level > 0) by_promotion_.erase(task);
}

WaitingTask* TaskQueue::Find(uint64_t ticket) const {
  const auto it = owned_.find(ticket);
  return it == owned_.end() ? nullptr : it->second.get();
}

std::vector<WaitingWork> TaskQueue::WorkAhead(int level, const ServedModel& model, const std::string& client) const {
  std::vector<WaitingWork> work;
  absl::flat_hash_map<const ServedModel*, WorkSize> beyond;
  if (const auto turns = levels_.find(level); turns != levels_.end()) {
    beyond = turns->second.ExpectedExtraLoad(model.info.name, client);
    work = turns->second.WorkOfOthers(model);
    for (const WaitingWork& others : work) {
      beyond[others.model] -= others.load;
    }
  }
  for (const auto& [version, waiting] : versions_) {
    WorkSize sum;
    for (size_t i = 0; i < waiting.by_priority.size() && static_cast<int>(i) <= level; ++i) {
      sum += waiting.by_priority[i];
    }
    if (const auto found = beyond.find(version); found != beyond.end()) sum += found->second;
    if (sum.requests > 0) work.push_back({.model = version, .load = sum});
  }
  return work;
}

WorkSize TaskQueue::LessUrgentThan(const std::string& name, int priority) const {
  WorkSize sum;
  const auto model = models_.find(name);
  if (model == models_.end()) return sum;
  for (auto it = model->second.upper_bound(priority); it != model->second.end(); ++it) sum += it->second.all;
  return sum;
}

WaitingTask* TaskQueue::LeastUrgent(const std::string& name, int64_t WorkSize::*size) const {
  const auto model = models_.find(name);
  return model == models_.end() ? nullptr : NewestOfLargestHold(name, model->second.rbegin()->first, size);
}

const TaskQueue::Priority* TaskQueue::FindPriority(const std::string& name, int priority) const {
  const auto model = models_.find(name);
  if (model == models_.end()) return nullptr;
  const auto counts = model->second.find(priority);
  return counts == model->second.end() ? nullptr : &counts->second;
}

TaskQueue::Holds TaskQueue::HoldsOf(const std::string& name, int priority, const std::string& client) const {
  Holds holds{.num_clients = 1, .own = {}};
  const Priority* counts = FindPriority(name, priority);
  if (counts == nullptr) return holds;
  const auto own = counts->by_client.find(client);
  const bool holds_some = own != counts->by_client.end();
  if (holds_some) holds.own = own->second.load;
  holds.num_clients = static_cast<int64_t>(counts->by_client.size()) + (holds_some ? 0 : 1);
  return holds;
}

WaitingTask* TaskQueue::NewestOfLargestHold(const std::string& name, int priority, int64_t WorkSize::*size) const {
  const Priority* counts = FindPriority(name, priority);
  if (counts == nullptr) return nullptr;
  const Hold* largest = nullptr;
  for (const auto& [client, hold] : counts->by_client) {
    // If several holds are equal, the client whose newest task came last gives way.
    const auto rank = [size](const Hold& one) {
      return std::make_pair(one.load.*size, (*one.tasks.rbegin())->arrival);
    };
    if (largest == nullptr || rank(hold) > rank(*largest)) largest = &hold;
  }
  return *largest->tasks.rbegin();
}

void TaskQueue::Promote(absl::Time now) noexcept {
  while (!by_promotion_.empty() && (*by_promotion_.begin())->promotion <= now) {
    WaitingTask* task = *by_promotion_.begin();
    LeaveLevel(task, std::nullopt);
    task->level = 0;
    EnterLevel(task);
  }
}

}  // namespace voxserve
