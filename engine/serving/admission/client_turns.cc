#include "engine/serving/admission/client_turns.h"

#include <algorithm>
#include <cmath>

namespace voxserve {
namespace {

// Virtual times that differ by less, in seconds, are equal: their sums are rounded.
constexpr double kRounding = 1e-9;

bool HasCome(double time, double now) { return time <= now + kRounding; }

}  // namespace

void ClientTurns::Add(WaitingTask* task) {
  std::unique_ptr<Client>& client = clients_[task->client()];
  if (client == nullptr) {
    client = std::make_unique<Client>();
    client->name = task->client();
    client->start = client->due = now_;
  }
  TakeOut(client.get());
  Version& version = client->versions[task->model()];
  version.tasks.insert(task);
  if (task->level == task->priority()) {
    version.not_promoted.Add(*task);
    client->waiting_cost += task->cost;
    ++client->num_waiting;
  }
  Place(client.get());
}

void ClientTurns::Remove(WaitingTask* task) {
  Client* const client = clients_.at(task->client()).get();
  TakeOut(client);
  Erase(client, task);
  Place(client);
}

void ClientTurns::Run(WaitingTask* task) {
  Client* const client = clients_.at(task->client()).get();
  TakeOut(client);
  Erase(client, task);
  const double begin = client->start;
  client->start += task->cost;
  client->due = client->versions.empty() ? begin : client->start;
  Advance(task->cost);
  Place(client);
}

void ClientTurns::Erase(Client* client, WaitingTask* task) {
  const auto version = client->versions.find(task->model());
  version->second.tasks.erase(task);
  if (task->level == task->priority()) {
    version->second.not_promoted.Subtract(*task);
    --client->num_waiting;
    client->waiting_cost = client->num_waiting == 0 ? 0 : client->waiting_cost - task->cost;
  }
  if (version->second.tasks.empty()) client->versions.erase(version);
}

void ClientTurns::TakeOut(Client* client) {
  if (client->head == nullptr) {
    absent_.erase({client->start, client});
  } else if (client->is_ready) {
    ready_.erase(client->head);
  } else {
    pending_.erase({client->due, client});
  }
}

void ClientTurns::Place(Client* client) {
  client->head = nullptr;
  client->is_ready = false;
  for (const auto& [model, version] : client->versions) {
    WaitingTask* first = *version.tasks.begin();
    if (client->head == nullptr || MoreUrgent()(first, client->head)) client->head = first;
  }
  if (client->head == nullptr) {
    absent_.insert({client->start, client});
  } else {
    pending_.insert({client->due, client});
  }
  Settle();
}

void ClientTurns::Advance(double cost) {
  // The client that is charged has been taken out, and counts.
  while (!absent_.empty()) {
    const double until_next = (absent_.begin()->first - now_) * static_cast<double>(num_active());
    if (until_next > cost) break;
    cost -= std::max(0.0, until_next);
    now_ = std::max(now_, absent_.begin()->first);
    ForgetUpToNow();
  }
  now_ += cost / static_cast<double>(num_active());
}

void ClientTurns::Settle() {
  if (ready_.empty() && !pending_.empty()) now_ = std::max(now_, pending_.begin()->first);
  while (!pending_.empty() && HasCome(pending_.begin()->first, now_)) {
    Client* const client = pending_.begin()->second;
    client->is_ready = true;
    ready_.insert(client->head);
    pending_.erase(pending_.begin());
  }
  ForgetUpToNow();
  if (ready_.empty()) {
    clients_.clear();
    absent_.clear();
    now_ = 0;
  }
}

void ClientTurns::ForgetUpToNow() {
  while (!absent_.empty() && HasCome(absent_.begin()->first, now_)) {
    const std::string name = absent_.begin()->second->name;
    absent_.erase(absent_.begin());
    clients_.erase(name);
  }
}

absl::flat_hash_map<const ServedModel*, Load> ClientTurns::TurnsAfter(const std::string& client) const {
  absl::flat_hash_map<const ServedModel*, Load> after;
  const auto own = clients_.find(client);
  // When the newcomer's turn comes.
  const double turn = own == clients_.end() ? now_ : own->second->start + own->second->waiting_cost;
  for (const auto& [name, other] : clients_) {
    if (other->num_waiting == 0 || name == client) continue;
    const double mean_cost = other->waiting_cost / static_cast<double>(other->num_waiting);
    const double cost_before = std::max(0.0, turn - other->start) + mean_cost;
    if (HasCome(other->waiting_cost, cost_before)) continue;
    const double share_before = cost_before / other->waiting_cost;
    for (const auto& [model, version] : other->versions) {
      const Load& load = version.not_promoted;
      const auto before = static_cast<int64_t>(std::ceil(share_before * static_cast<double>(load.requests) - 1e-6));
      const int64_t requests = load.requests - std::min(load.requests, before);
      if (requests == 0) continue;
      const auto part = [&](int64_t all) {
        return static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(requests) /
                                    static_cast<double>(load.requests));
      };
      Load& sum = after[model];
      sum.requests += requests;
      sum.points += part(load.points);
      sum.bytes += part(load.bytes);
    }
  }
  return after;
}

ClientTurns::Cursor::Cursor(const ClientTurns& turns, const ServedModel* version)
    : now_(turns.now_), num_active_(static_cast<double>(turns.num_active())) {
  last_.next = last_.end = none_.end();
  for (const auto& [name, client] : turns.clients_) {
    const auto tasks = client->versions.find(version);
    if (tasks == client->versions.end()) continue;
    Put({.start = client->start,
         .due = client->due,
         .next = tasks->second.tasks.begin(),
         .end = tasks->second.tasks.end()});
  }
}

void ClientTurns::Cursor::Put(const Client& client) {
  if (client.next == client.end) return;
  if (HasCome(client.due, now_)) {
    ready_.push(client);
  } else {
    pending_.push(client);
  }
}

WaitingTask* ClientTurns::Cursor::Next() {
  if (last_.next != last_.end) {
    ++last_.next;
    Put(last_);
  }
  if (ready_.empty() && !pending_.empty()) now_ = std::max(now_, pending_.top().due);
  while (!pending_.empty() && HasCome(pending_.top().due, now_)) {
    ready_.push(pending_.top());
    pending_.pop();
  }
  if (ready_.empty()) {
    last_.next = last_.end = none_.end();
    return nullptr;
  }
  last_ = ready_.top();
  ready_.pop();
  return *last_.next;
}

void ClientTurns::Cursor::Take() {
  const double cost = (*last_.next)->cost;
  last_.start += cost;
  last_.due = last_.start;
  now_ += cost / num_active_;
}

}  // namespace voxserve
