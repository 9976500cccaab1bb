#pragma once

// ClientTurns holds the tasks of one model and level and lets their clients take turns, so that one client's many or
// large requests do not delay another's few small ones.
//
// - Rule: fair queueing as in earliest eligible virtual deadline first (Stoica and Abdel-Wahab 1995), but that of the
//   clients whose turn is due the most urgent comes first, unless one is overdue (TurnOrder).
// - Virtual time: a task that runs moves it by the task's cost over the sum of the active clients' shares (1 each
//   unless InferTask::client_share says otherwise), and moves its client's `start` by the cost over the client's share.
//   The client's turn is due again when virtual time reaches its start. A new client begins at the current virtual
//   time: it has saved nothing up and owes nothing.
// - One request ahead: a client that has nothing else waiting when its task runs may be ahead of its share by that one
//   request. So clients that send one request at a time mostly run by their urgency, as if they were one client.
// - Predictions use the share of the level that each client had recently.
// - Absent clients are remembered, and count as active, until virtual time reaches their start. At most twice as many
//   as wait are remembered, or 64 if that is more: each more would slow virtual time, and with it the turns of waiting
//   clients. The absent client with the earliest start, which owes least, is forgotten first. When no task waits, all
//   clients are forgotten.
// - One client: its tasks run by urgency.
// - Cost: logarithmic in the number of tasks. AheadBeyondWaiting and Cursor's constructor are linear in the number of
//   waiting clients, which the queue's limit bounds.
// - Threads: not thread-safe. ModelTurns owns it.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/serving/admission/turn_order.h"
#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class ClientTurns {
 public:
  class Cursor;

  void Add(WaitingTask* task);
  // Removes a task that does not run.
  void Remove(WaitingTask* task);
  // Removes a task that runs, which takes a turn of its client.
  void Run(WaitingTask* task);

  bool empty() const { return waiting_.empty(); }
  // Returns the task whose turn it is; nullptr: none waits.
  WaitingTask* First() const { return empty() ? nullptr : order_.First()->head; }

  // Returns the difference between the load that is expected to run before a new task of this client and the load of
  // all tasks that wait at the level and were not promoted to it.
  // - It is less by the tasks whose turn comes after the new one: before it, each other client runs what its share
  //   allows, and at least one task.
  // - It is more by what others are expected to send while the client's own tasks run: enough to keep the client at the
  //   larger of its recent share of the device and an equal share.
  absl::flat_hash_map<const ServedModel*, Load> AheadBeyondWaiting(const std::string& client) const;

  // Returns the number of clients that wait or are remembered.
  int64_t num_active() const { return static_cast<int64_t>(clients_.size()); }

 private:
  struct Version {
    TasksByUrgency tasks;
    Load not_promoted;
  };
  struct Client : TurnOrder::Turn {  // head: null where the client is absent
    std::string name;
    double share = 1;                                // of the newest task
    std::map<const ServedModel*, Version> versions;  // with tasks
    double waiting_cost = 0;                         // of the tasks that have not been promoted
    int64_t num_waiting = 0;                         // number of tasks that have not been promoted
    // The client's recent device time at this level: `had` is its decayed cost at the time `had_until`, known from
    // `since` on. Times are counted in the cost of all tasks that ran (ran_).
    double had = 0;
    double had_until = 0;
    double since = 0;
  };

  // A client is taken out of the orders below before it changes, and placed again afterwards.
  void TakeOut(Client* client);
  void Place(Client* client);
  void Erase(Client* client, WaitingTask* task);
  // Moves virtual time by the clients' share of `cost`, and forgets absent clients whose start it reaches.
  void Advance(double cost);
  void ForgetUpToNow();
  void ForgetFirstAbsent();
  // Returns the share of the level's cost that the client had recently; 1 where nothing is known yet.
  double RecentShare(const Client& client) const;

  TurnOrder order_;                                                    // of the clients with tasks
  absl::flat_hash_map<std::string, std::unique_ptr<Client>> clients_;  // by name; those that are active
  double sum_of_shares_ = 0;                                           // of them
  absl::flat_hash_set<Client*> waiting_;                               // the part of them that has tasks
  std::set<std::pair<double, Client*>> absent_;                        // the other part, by `start`
  double ran_ = 0;                                                     // the cost of all that ran
};

// Walks through the tasks of one version in the order in which they would run if no other version was served. Valid
// until the turns change.
class ClientTurns::Cursor {
 public:
  Cursor(const ClientTurns& turns, const ServedModel* version);

  // Returns true if the level has other clients than one.
  bool is_shared() const { return is_shared_; }
  // Returns the next task; nullptr: none.
  WaitingTask* Next();
  // Tells that the task that Next returned last will run, which is a turn of its client. A skipped task costs no turn.
  void Take();

 private:
  struct Client : TurnOrder::Turn {
    double share = 1;
    TasksByUrgency::const_iterator next;
    TasksByUrgency::const_iterator end;
  };

  // Puts the client at the place of its next task, if it has one.
  void Put(Client* client);

  const bool is_shared_;
  const double sum_of_shares_;
  std::vector<Client> clients_;
  TurnOrder order_;
  Client* last_ = nullptr;  // the client of the task that Next returned; it is taken out of the order
};

}  // namespace voxserve
