#pragma once

// ClientTurns holds the waiting tasks of one model at one level (batcher.h) and lets their clients take turns, so that
// one client's many or large requests do not delay another client's few small ones.
//
// - Rule: fair queueing after "earliest eligible virtual deadline first" (Stoica and Abdel-Wahab 1995), with one
//   change. Among the clients whose turn is due, the client with the most urgent task comes first, unless a client is
//   overdue (TurnOrder).
// - Cost: a task's cost is the device time, in seconds, that it is predicted to take alone (WaitingTask::cost).
// - Virtual time: when a task runs, virtual time moves by the task's cost divided by the sum of the active clients'
//   shares (InferTask::client_share, by default 1). The `start` of the task's client moves by the cost divided by the
//   client's own share. The client's turn is due again when virtual time reaches its start. A new client begins at the
//   current virtual time: it has saved nothing up and owes nothing.
// - One request ahead: a client that has nothing else waiting when its task runs may be ahead of its share by that one
//   request. So clients that send one request at a time mostly run by their urgency, as if they were one client.
// - Absent clients, which have no waiting task, are remembered until virtual time reaches their start; they owe device
//   time. Waiting and remembered clients are the active ones. Each remembered client slows virtual time, and with it
//   the turns of waiting clients. So at most twice as many clients are remembered as wait, or 64 if that is more. The
//   absent client with the earliest start, which owes least, is forgotten first. When no task waits, all clients are
//   forgotten.
// - One client: if only one client is active, its tasks run by urgency.
// - Run time: logarithmic in the number of tasks. ExpectedExtraLoad and Cursor's constructor are linear in the number
//   of waiting clients, which the queue's limit bounds.
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
  // Removes a task that runs, and counts it as a turn of its client.
  void Run(WaitingTask* task);

  bool empty() const { return waiting_.empty(); }
  // Returns the task whose turn it is; nullptr if no task waits.
  WaitingTask* First() const { return empty() ? nullptr : order_.First()->head; }

  // Returns, by version, how much more load is expected to run before a new task of this client than the tasks that
  // wait here and were not promoted to the level. The difference may be negative.
  // - It is reduced by the tasks whose turn comes after the new task. Before the new task, each other client runs only
  //   what its share allows, and at least one task.
  // - It is increased by what other clients are expected to send while the client's own waiting tasks run. They are
  //   expected to leave the client the larger of two parts of the device: the part that it had recently, and its share
  //   divided by the sum of the active clients' shares.
  absl::flat_hash_map<const ServedModel*, WorkSize> ExpectedExtraLoad(const std::string& client) const;

  // Returns the number of clients that wait or are remembered.
  int64_t num_active() const { return static_cast<int64_t>(clients_.size()); }

 private:
  struct Version {
    TasksByUrgency tasks;
    WorkSize not_promoted;  // of the tasks that were not promoted to this level
  };
  struct Client : TurnOrder::Turn {  // head: null if the client is absent
    std::string name;
    double share = 1;                                // the client_share of its newest task
    std::map<const ServedModel*, Version> versions;  // only versions with tasks of this client
    double waiting_cost = 0;                         // of the tasks that were not promoted to this level
    int64_t num_waiting = 0;                         // number of tasks that were not promoted to this level
    // The client's recent device time at this level. `had` is the sum of the costs of its tasks, which decay
    // exponentially, at the time `had_until`. The client has been known since `since`. These times are values of ran_.
    double had = 0;
    double had_until = 0;
    double since = 0;
  };

  // A client is taken out of the orders below before it changes, and placed again afterwards.
  void TakeOut(Client* client);
  void Place(Client* client);
  void Erase(Client* client, WaitingTask* task);
  // Moves virtual time by `cost` over the sum of the active clients' shares, and forgets absent clients whose start
  // virtual time reaches.
  void Advance(double cost);
  void ForgetUpToNow();
  void ForgetFirstAbsent();
  // Returns the share, 0 to 1, of the cost of recent tasks that the client had; 1 for a new client.
  double RecentShare(const Client& client) const;

  TurnOrder order_;                                                    // of the clients with tasks
  absl::flat_hash_map<std::string, std::unique_ptr<Client>> clients_;  // the active clients, by name
  double sum_of_shares_ = 0;                                           // of the active clients
  absl::flat_hash_set<Client*> waiting_;                               // the active clients that have tasks
  std::set<std::pair<double, Client*>> absent_;                        // the active clients without tasks, by `start`
  double ran_ = 0;                                                     // the cost of all tasks that ran, in seconds
};

// Cursor walks through the tasks of one version in the order in which they would run if no other version was served. It
// is valid until a task is added to or removed from its ClientTurns.
class ClientTurns::Cursor {
 public:
  Cursor(const ClientTurns& turns, const ServedModel* version);

  // Returns true if more than one client is active.
  bool is_shared() const { return is_shared_; }
  // Returns the next task; nullptr if there is none.
  WaitingTask* Next();
  // Records that the task that Next returned last will run, which is a turn of its client. A skipped task costs no
  // turn.
  void Take();

 private:
  struct Client : TurnOrder::Turn {
    double share = 1;
    TasksByUrgency::const_iterator next;
    TasksByUrgency::const_iterator end;
  };

  // Puts the client into the order by its next task, if it has one.
  void Put(Client* client);

  const bool is_shared_;
  const double sum_of_shares_;
  std::vector<Client> clients_;
  TurnOrder order_;
  Client* last_ = nullptr;  // the client of the task that Next returned last; not in the order
};

}  // namespace voxserve
