#include "engine/serving/admission/model_turns.h"

#include <algorithm>

namespace voxserve {
namespace {

bool IsNotPromoted(const WaitingTask& task) { return task.level == task.priority(); }

}  // namespace

void ModelTurns::Add(WaitingTask* task) {
  Model& model = models_[task->model()->info.name];
  if (!model.waits()) model.start = std::max(model.start, now_);
  model.weight = task->model()->batching.device_weight;
  model.clients.Add(task);
  if (IsNotPromoted(*task)) model.not_promoted[task->model()] += task->load;
  ++num_tasks_;
}

void ModelTurns::Remove(WaitingTask* task) {
  Model& model = models_.at(task->model()->info.name);
  model.clients.Remove(task);
  Erase(*task, model);
  ForgetSettled();
}

void ModelTurns::Run(WaitingTask* task, double seconds) {
  double earliest = models_.at(task->model()->info.name).start;
  for (const auto& [name, other] : models_) {
    if (other.waits()) earliest = std::min(earliest, other.start);
  }
  now_ = std::max(now_, earliest);
  Model& model = models_.at(task->model()->info.name);
  model.clients.Run(task);
  Erase(*task, model);
  model.start += seconds / model.weight;
  ForgetSettled();
}

void ModelTurns::Erase(const WaitingTask& task, Model& model) {
  --num_tasks_;
  if (!IsNotPromoted(task)) return;
  const auto load = model.not_promoted.find(task.model());
  load->second -= task.load;
  if (load->second.requests == 0) model.not_promoted.erase(load);
}

void ModelTurns::Correct(const std::string& model, double seconds) {
  const auto found = models_.find(model);
  if (found == models_.end()) return;
  // The batch may have run before the level was last empty, when all starts were reset. So the correction gives no
  // credit.
  const double corrected = found->second.start + seconds / found->second.weight;
  found->second.start = std::max(corrected, std::min(found->second.start, now_));
  ForgetSettled();
}

void ModelTurns::ForgetSettled() {
  for (auto it = models_.begin(); it != models_.end();) {
    const bool is_settled = !it->second.waits() && it->second.start <= now_;
    it = is_settled ? models_.erase(it) : std::next(it);
  }
}

WaitingTask* ModelTurns::First() const {
  const Model* first = nullptr;
  for (const auto& [name, model] : models_) {
    if (!model.waits()) continue;
    const double later = first == nullptr ? -1 : model.start - first->start;
    const bool is_equal = std::abs(later) <= TurnOrder::kRounding;
    if (is_equal ? MoreUrgent()(model.clients.First(), first->clients.First()) : later < 0) first = &model;
  }
  return first == nullptr ? nullptr : first->clients.First();
}

absl::flat_hash_map<const ServedModel*, WorkSize> ModelTurns::ExpectedExtraLoad(const std::string& model,
                                                                                const std::string& client) const {
  const auto found = models_.find(model);
  return found == models_.end() ? absl::flat_hash_map<const ServedModel*, WorkSize>()
                                : found->second.clients.ExpectedExtraLoad(client);
}

std::vector<WaitingWork> ModelTurns::WorkOfOthers(const ServedModel& model) const {
  const auto own = models_.find(model.info.name);
  const double start = own == models_.end()  ? now_
                       : own->second.waits() ? own->second.start
                                             : std::max(now_, own->second.start);
  const double weight = own == models_.end() ? model.batching.device_weight : own->second.weight;
  std::vector<WaitingWork> work;
  for (const auto& [name, other] : models_) {
    if (name == model.info.name) continue;
    const WaitingWork::Turn turn{.lead_seconds = (start - other.start) * other.weight,
                                 .weight_ratio = other.weight / weight};
    for (const auto& [version, load] : other.not_promoted) {
      work.push_back({.model = version, .load = load, .turn = turn});
    }
  }
  return work;
}

}  // namespace voxserve
