#pragma once

// TaskQueue holds the waiting tasks in every order that the Batcher needs: by level, turn and urgency, by expiry, and
// by arrival.
//
// - Levels: a task's level is its priority, until the task is promoted to level 0, the most urgent. Tasks with the
//   lowest level number run first. Within a level the models take turns (ModelTurns), and within a model its clients
//   take turns (ClientTurns).
// - Promotion: a promoted task runs in the turns of level 0. The methods that count or evict tasks (OfModel,
//   LessUrgentThan, LeastUrgent, HoldsOf, NewestOfLargestHold, WorkAhead) still count a promoted task at its own
//   priority. Otherwise it would take places in the queue that belong to tasks of priority 0.
// - Run time: every operation is logarithmic in the number of tasks, plus a part linear in the number of models
//   (ModelTurns). WorkAhead, TasksOf, LeastUrgent and NewestOfLargestHold are also linear in the number of waiting
//   clients, which the queue's limit bounds.
// - Memory: Add, Remove, Run and Promote are noexcept. If one of them gets no memory for its few nodes, the process
//   ends. Otherwise a task would be in only some of the orders, and might never be answered. So the Batcher refuses a
//   task before Add if there is no memory.
// - Threads: not thread-safe. The Batcher owns it and calls it under its lock.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/serving/admission/client_turns.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/model_turns.h"
#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class TaskQueue {
 public:
  // The waiting tasks of one version.
  struct Version {
    int64_t num_tasks = 0;
    std::map<int, int64_t> num_by_level;  // only levels with tasks
    std::vector<WorkSize> by_priority;    // index: the priority
  };

  WaitingTask* Add(std::unique_ptr<WaitingTask> task) noexcept;
  // Removes a task that does not run.
  std::unique_ptr<WaitingTask> Remove(WaitingTask* task) noexcept;
  // Removes a task that runs. This counts as a turn of the task's client, and charges the task's model `seconds`, the
  // predicted device time.
  std::unique_ptr<WaitingTask> Run(WaitingTask* task, double seconds) noexcept;
  // Charges the model's turns at this level the difference between the actual and the predicted seconds of a batch.
  void Correct(const std::string& model, int level, double seconds);

  bool empty() const { return owned_.empty(); }
  int64_t size() const { return static_cast<int64_t>(owned_.size()); }
  // Returns the waiting task with this ticket, or nullptr if there is none.
  WaitingTask* Find(uint64_t ticket) const;
  const std::map<const ServedModel*, Version>& versions() const { return versions_; }
  // Returns the work, by version, that is expected to run before a new task of this level, model and client. The work
  // consists of:
  // - all tasks of more urgent priorities;
  // - at the new task's level, the client's own tasks, and tasks of the model's other clients whose turns come first
  //   (ClientTurns::ExpectedExtraLoad);
  // - at the new task's level, the other models' tasks, with their turns (ModelTurns::WorkOfOthers).
  std::vector<WaitingWork> WorkAhead(int level, const ServedModel& model, const std::string& client) const;
  // Returns the task to run next: in the lowest level that has tasks, the task whose turn it is. Returns nullptr if no
  // task waits.
  WaitingTask* First() const { return levels_.empty() ? nullptr : levels_.begin()->second.First(); }
  // Returns the tasks of one version and level, in the order of turns. The version must have tasks at the level. The
  // cursor is valid until a task is added or removed.
  ClientTurns::Cursor TasksOf(const ServedModel* version, int level) const {
    return ClientTurns::Cursor(levels_.at(level).ClientsOf(version->info.name), version);
  }

  // Returns the load of the waiting tasks of all versions of a model.
  WorkSize OfModel(const std::string& name) const { return LessUrgentThan(name, -1); }
  // Returns the load of the model's waiting tasks whose priority number is above `priority`.
  WorkSize LessUrgentThan(const std::string& name, int priority) const;
  // Returns the task to evict first: NewestOfLargestHold at the highest (least urgent) priority number at which the
  // model has waiting tasks. Returns nullptr if the model has no tasks.
  WaitingTask* LeastUrgent(const std::string& name, int64_t WorkSize::*size) const;

  // HoldsOf tells how a model's queue is shared at one priority. A client holds the load of its waiting tasks.
  struct Holds {
    int64_t num_clients = 0;  // number of clients that have waiting tasks; `client` counts even if it has none
    WorkSize own;             // the load of the waiting tasks of `client`
  };
  Holds HoldsOf(const std::string& name, int priority, const std::string& client) const;
  // Returns the newest task of the client whose waiting tasks of this model and priority are the largest load, or
  // nullptr if the model has no task of this priority. size: the field of WorkSize to compare by, requests or bytes.
  WaitingTask* NewestOfLargestHold(const std::string& name, int priority, int64_t WorkSize::*size) const;

  // Returns the first task to expire, or nullptr if there is none.
  WaitingTask* FirstToExpire() const { return by_expiry_.empty() ? nullptr : *by_expiry_.begin(); }
  // Moves each task whose promotion time has come to level 0.
  void Promote(absl::Time now) noexcept;

 private:
  struct Earlier {
    absl::Time WaitingTask::*time;
    bool operator()(const WaitingTask* a, const WaitingTask* b) const;
  };
  struct ByArrival {
    bool operator()(const WaitingTask* a, const WaitingTask* b) const { return a->arrival < b->arrival; }
  };
  struct Hold {
    WorkSize load;
    std::set<WaitingTask*, ByArrival> tasks;
  };
  // The waiting tasks of one model and priority, by client, and their load.
  struct Priority {
    WorkSize all;
    absl::flat_hash_map<std::string, Hold> by_client;  // only clients with tasks
  };
  // The waiting tasks of all versions of one model, by priority. Only priorities with tasks have an entry.
  using Model = std::map<int, Priority>;

  const Priority* FindPriority(const std::string& name, int priority) const;
  void Count(WaitingTask* task);
  void Discount(WaitingTask* task);
  void EnterLevel(WaitingTask* task);
  // seconds: the predicted device time if the task runs; nullopt if it does not run.
  void LeaveLevel(WaitingTask* task, std::optional<double> seconds);
  std::unique_ptr<WaitingTask> Release(WaitingTask* task);

  absl::flat_hash_map<uint64_t, std::unique_ptr<WaitingTask>> owned_;  // by ticket
  std::map<int, ModelTurns> levels_;                                   // only levels with tasks
  std::map<const ServedModel*, Version> versions_;                     // only versions with tasks
  absl::flat_hash_map<std::string, Model> models_;                     // only models with tasks
  std::set<WaitingTask*, Earlier> by_expiry_{Earlier{&WaitingTask::expiry}};
  std::set<WaitingTask*, Earlier> by_promotion_{Earlier{&WaitingTask::promotion}};  // tasks of levels above 0
  uint64_t next_arrival_ = 0;
};

}  // namespace voxserve
