#pragma once

// ClientTurns holds the tasks of one level and lets their clients take turns, so that one client's many or large
// requests do not delay another's few small ones.
//
// - Rule: earliest eligible virtual deadline first (Stoica and Abdel-Wahab 1995), with the tasks' urgency in place of
//   the virtual deadline. A client is eligible, or ready, while it has had no more device time than its share; the most
//   urgent task of a ready client comes first.
// - Virtual time is the device time that a client with an equal share has had: a task that runs moves it by the task's
//   cost over the number of active clients, and moves its client's `start` by the whole cost. The client is ready again
//   when virtual time reaches its start. A client that comes begins at the virtual time of now: it has saved nothing up
//   and owes nothing.
// - One request ahead: a client that has nothing else waiting when its task runs may be ahead of its share by that one
//   request. So clients that send one request at a time mostly run by their urgency, as if they were one client.
// - Absent clients are remembered, and count as active, until virtual time reaches their start. All is forgotten when
//   no task waits.
// - One client: its tasks run by urgency.
// - Bound: between two turns of a client that waits, every other client has at most two, one of them because it was
//   behind. So nobody starves, whatever urgency the others claim.
// - No device is left idle: where no client is ready, virtual time moves on to the first that will be.
// - Cost: logarithmic in the number of tasks; TurnsAfter and Cursor's constructor are linear in that of clients.
// - Threads: not thread-safe. TaskQueue owns it.

#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class ClientTurns {
 public:
  class Cursor;

  void Add(WaitingTask* task);
  // The task leaves without having run.
  void Remove(WaitingTask* task);
  // The task leaves to run, which is a turn of its client.
  void Run(WaitingTask* task);

  bool empty() const { return ready_.empty(); }  // where a task waits, a client is ready
  // Returns the task whose turn it is; nullptr: none waits.
  WaitingTask* First() const { return ready_.empty() ? nullptr : *ready_.begin(); }

  // Returns the load, by version, that has its turn after a task of this client that comes now. Counts the tasks that
  // have not been promoted to this level. It is estimated from below: each other client is ahead by one task at least.
  absl::flat_hash_map<const ServedModel*, Load> TurnsAfter(const std::string& client) const;

 private:
  struct Version {
    TasksByUrgency tasks;
    Load not_promoted;
  };
  struct Client {
    std::string name;
    double start = 0;                                // virtual time at which its share of what it has had ends
    double due = 0;                                  // virtual time from which on it is ready
    std::map<const ServedModel*, Version> versions;  // with tasks
    double waiting_cost = 0;                         // of the tasks that have not been promoted
    int64_t num_waiting = 0;                         // number of those
    WaitingTask* head = nullptr;                     // the most urgent task; null: the client is absent
    bool is_ready = false;
  };
  using ByTime = std::set<std::pair<double, Client*>>;

  // A client is taken out of the orders below before it changes, and placed again where it belongs then.
  void TakeOut(Client* client);
  void Place(Client* client);
  void Erase(Client* client, WaitingTask* task);
  // Moves virtual time by what the clients' shares of `cost` are, and forgets absent clients on the way.
  void Advance(double cost);
  // Makes ready whoever is due, and at least one.
  void Settle();
  void ForgetUpToNow();
  int64_t num_active() const { return static_cast<int64_t>(clients_.size()); }

  double now_ = 0;                                                     // virtual time, seconds
  absl::flat_hash_map<std::string, std::unique_ptr<Client>> clients_;  // by name; those that are active
  TasksByUrgency ready_;                                               // heads of the clients that are ready
  ByTime pending_;                                                     // clients with tasks that are not, by `due`
  ByTime absent_;                                                      // by `start`
};

// Walks through the tasks of one version in the order in which they would run if it alone was served. Valid until the
// turns change.
class ClientTurns::Cursor {
 public:
  Cursor(const ClientTurns& turns, const ServedModel* version);
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  // Returns the next task; nullptr: none.
  WaitingTask* Next();
  // The task that Next returned last will run: its client's turn is over. A task that is passed over costs no turn.
  void Take();

 private:
  struct Client {
    double start = 0;
    double due = 0;
    TasksByUrgency::const_iterator next;
    TasksByUrgency::const_iterator end;
  };
  struct LessUrgent {
    bool operator()(const Client& a, const Client& b) const { return MoreUrgent()(*b.next, *a.next); }
  };
  struct DueLater {
    bool operator()(const Client& a, const Client& b) const { return a.due > b.due; }
  };

  void Put(const Client& client);

  double now_;
  const double num_active_;
  std::priority_queue<Client, std::vector<Client>, LessUrgent> ready_;
  std::priority_queue<Client, std::vector<Client>, DueLater> pending_;
  Client last_;  // whose task Next returned; next == end: none
  TasksByUrgency none_;
};

}  // namespace voxserve
