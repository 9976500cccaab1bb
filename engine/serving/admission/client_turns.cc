#include "engine/serving/admission/client_turns.h"

#include <algorithm>
#include <cmath>

namespace voxserve {
namespace {

// RecentShare weights a task that ran by exp(-age / kRecent). The age is the cost, in seconds, of all tasks that ran
// since.
constexpr double kRecent = 0.25;
// RecentShare counts this cost, in seconds, as a recent task of every client. So the share of a new client is 1.
constexpr double kCredit = 0.03;
// The number of absent clients that are remembered: kAbsentPerWaiting for each waiting one, and at least kMinAbsent.
constexpr size_t kAbsentPerWaiting = 2;
constexpr size_t kMinAbsent = 64;

}  // namespace

void ClientTurns::Add(WaitingTask* task) {
  std::unique_ptr<Client>& client = clients_[task->client()];
  if (client == nullptr) {
    client = std::make_unique<Client>();
    client->name = task->client();
    client->start = client->due = order_.now();
    client->since = client->had_until = ran_;
    sum_of_shares_ += client->share;
  }
  TakeOut(client.get());
  sum_of_shares_ += task->client_share() - client->share;
  client->share = task->client_share();
  Version& version = client->versions[task->model()];
  version.tasks.insert(task);
  if (task->level == task->priority()) {
    version.not_promoted += task->load;
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
  client->start += task->cost / client->share;
  client->due = client->versions.empty() ? begin : client->start;
  Advance(task->cost);
  ran_ += task->cost;
  client->had = client->had * std::exp((client->had_until - ran_) / kRecent) + task->cost;
  client->had_until = ran_;
  Place(client);
}

void ClientTurns::Erase(Client* client, WaitingTask* task) {
  const auto version = client->versions.find(task->model());
  version->second.tasks.erase(task);
  if (task->level == task->priority()) {
    version->second.not_promoted -= task->load;
    --client->num_waiting;
    client->waiting_cost = client->num_waiting == 0 ? 0 : client->waiting_cost - task->cost;
  }
  if (version->second.tasks.empty()) client->versions.erase(version);
}

void ClientTurns::TakeOut(Client* client) {
  if (client->head == nullptr) {
    absent_.erase({client->start, client});
  } else {
    waiting_.erase(client);
    order_.TakeOut(client);
  }
}

void ClientTurns::Place(Client* client) {
  client->head = nullptr;
  for (const auto& [model, version] : client->versions) {
    WaitingTask* first = *version.tasks.begin();
    if (client->head == nullptr || MoreUrgent()(first, client->head)) client->head = first;
  }
  if (client->head == nullptr) {
    absent_.insert({client->start, client});
  } else {
    waiting_.insert(client);
    order_.Put(client);
  }
  order_.Settle();
  ForgetUpToNow();
  while (absent_.size() > std::max(kMinAbsent, kAbsentPerWaiting * waiting_.size())) ForgetFirstAbsent();
  if (empty()) {
    absent_.clear();
    clients_.clear();
    sum_of_shares_ = 0;
  }
}

void ClientTurns::Advance(double cost) {
  // Counts the charged client as active, though it has been taken out of the orders.
  while (!absent_.empty()) {
    const double until_next = (absent_.begin()->first - order_.now()) * sum_of_shares_;
    if (until_next > cost) break;
    cost -= until_next;
    order_.MoveTo(absent_.begin()->first);
    ForgetUpToNow();
  }
  order_.MoveTo(order_.now() + cost / sum_of_shares_);
}

void ClientTurns::ForgetUpToNow() {
  while (!absent_.empty() && order_.HasCome(absent_.begin()->first)) ForgetFirstAbsent();
}

void ClientTurns::ForgetFirstAbsent() {
  const std::string name = absent_.begin()->second->name;
  sum_of_shares_ -= absent_.begin()->second->share;
  absent_.erase(absent_.begin());
  clients_.erase(name);
}

double ClientTurns::RecentShare(const Client& client) const {
  const double had = client.had * std::exp((client.had_until - ran_) / kRecent);
  const double all = kRecent * (1 - std::exp((client.since - ran_) / kRecent));
  return std::min(1.0, (had + kCredit) / (all + kCredit));
}

absl::flat_hash_map<const ServedModel*, WorkSize> ClientTurns::ExpectedExtraLoad(const std::string& client) const {
  absl::flat_hash_map<const ServedModel*, WorkSize> beyond;
  const auto add_part = [&beyond](const ServedModel* model, const WorkSize& load, int64_t requests) {
    const double part = static_cast<double>(requests) / static_cast<double>(load.requests);
    beyond[model] += load.Scaled(part);
  };
  const auto found = clients_.find(client);
  const Client* const own = found == clients_.end() ? nullptr : found->second.get();
  double turn = order_.now();  // when the newcomer's turn is due
  if (own != nullptr)
    turn = own->head == nullptr ? std::max(turn, own->due) : own->start + own->waiting_cost / own->share;
  double others_before = 0;
  for (const Client* other : waiting_) {
    if (other->num_waiting == 0 || other == own) continue;
    const double mean_cost = other->waiting_cost / static_cast<double>(other->num_waiting);
    const double before = std::max(0.0, turn - other->start) * other->share + mean_cost;
    others_before += std::min(before, other->waiting_cost);
    if (before >= other->waiting_cost) continue;
    for (const auto& [model, version] : other->versions) {
      const WorkSize& load = version.not_promoted;
      const double requests = static_cast<double>(load.requests) * before / other->waiting_cost;
      const auto after = load.requests - std::min(load.requests, static_cast<int64_t>(std::ceil(requests - 1e-6)));
      if (after > 0) add_part(model, load, -after);
    }
  }
  if (own == nullptr || own->num_waiting == 0) return beyond;
  const double share = std::max(RecentShare(*own), own->share / sum_of_shares_);
  const double others_expected = own->waiting_cost * (1 / share - 1);
  if (others_expected <= others_before) return beyond;
  // Adds the others' expected work as more of the client's own work.
  const double more = (others_expected - others_before) / own->waiting_cost;
  for (const auto& [model, version] : own->versions) {
    const WorkSize& load = version.not_promoted;
    const auto requests = static_cast<int64_t>(std::lround(more * static_cast<double>(load.requests)));
    if (requests > 0) add_part(model, load, requests);
  }
  return beyond;
}

ClientTurns::Cursor::Cursor(const ClientTurns& turns, const ServedModel* version)
    : is_shared_(turns.num_active() > 1), sum_of_shares_(turns.sum_of_shares_), order_(turns.order_.now()) {
  for (const ClientTurns::Client* client : turns.waiting_) {
    const auto tasks = client->versions.find(version);
    if (tasks == client->versions.end()) continue;
    clients_.push_back({{.start = client->start, .due = client->due, .head = nullptr},
                        client->share,
                        tasks->second.tasks.begin(),
                        tasks->second.tasks.end()});
  }
  for (Client& client : clients_) Put(&client);
}

void ClientTurns::Cursor::Put(Client* client) {
  if (client->next == client->end) return;
  client->head = *client->next++;
  order_.Put(client);
}

WaitingTask* ClientTurns::Cursor::Next() {
  if (last_ != nullptr) Put(last_);
  order_.Settle();
  last_ = static_cast<Client*>(order_.First());
  if (last_ == nullptr) return nullptr;
  order_.TakeOut(last_);
  return last_->head;
}

void ClientTurns::Cursor::Take() {
  last_->start += last_->head->cost / last_->share;
  last_->due = last_->start;
  order_.MoveTo(order_.now() + last_->head->cost / sum_of_shares_);
}

}  // namespace voxserve
