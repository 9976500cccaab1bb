#pragma once

// TaskQueue holds the waiting tasks in every order that the Batcher needs: by level, turn and urgency, by expiry, and
// by arrival.
//
// - Levels: a task's level is its priority, until the task is promoted to level 0, the most urgent. Tasks of a lower
//   level run first. Within a level the models take turns (ModelTurns), and within a model its clients take turns
//   (ClientTurns).
// - Promotion: a promoted task runs in the turns of level 0. OfModel, HoldsOf and the like still count it at its own
//   priority: otherwise it would take the room in the queue that belongs to tasks of priority 0.
// - Cost: every operation is logarithmic in the number of tasks, except WorkAhead, TasksOf, LeastUrgent and
//   NewestOfLargestHold. These are linear in the number of waiting clients, which the queue's limit bounds.
// - Memory: a change that gets no memory for its few nodes ends the process. Otherwise a task would stand in some of the
//   orders only, and might never be answered.
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
    std::vector<Load> by_priority;
  };

  WaitingTask* Add(std::unique_ptr<WaitingTask> task) noexcept;
  // Removes a task that does not run.
  std::unique_ptr<WaitingTask> Remove(WaitingTask* task) noexcept;
  // Removes a task that runs. The task takes a turn of its client, and its model is charged the predicted seconds of
  // the device.
  std::unique_ptr<WaitingTask> Run(WaitingTask* task, double seconds) noexcept;
  // Adds the difference between the actual and the predicted seconds of a batch of this model and level.
  void Correct(const std::string& model, int level, double seconds);

  bool empty() const { return owned_.empty(); }
  int64_t size() const { return static_cast<int64_t>(owned_.size()); }
  // Returns nullptr if the task does not wait.
  WaitingTask* Find(uint64_t ticket) const;
  const std::map<const ServedModel*, Version>& versions() const { return versions_; }
  // Returns the work, by version, that is expected to run before a new task of this level, model and client. It is the
  // sum of: all tasks of more urgent priorities; at the task's level, the client's own tasks and those of the model's
  // other clients whose turns come first (ClientTurns::AheadBeyondWaiting); and the other models' tasks with their
  // turns (ModelTurns::WorkOfOthers).
  std::vector<WaitingWork> WorkAhead(int level, const ServedModel& model, const std::string& client) const;
  // Returns the task to run next: in the lowest level that has tasks, the task whose turn it is. Returns nullptr if no
  // task waits.
  WaitingTask* First() const { return levels_.empty() ? nullptr : levels_.begin()->second.First(); }
  // Returns the tasks of one version and level, in the order of turns. The level must have tasks. Valid until a task
  // comes or goes.
  ClientTurns::Cursor TasksOf(const ServedModel* version, int level) const {
    return ClientTurns::Cursor(levels_.at(level).ClientsOf(version->info.name), version);
  }

  // Returns the load of all versions of a model.
  Load OfModel(const std::string& name) const { return LessUrgentThan(name, -1); }
  // Returns the part of OfModel whose priority number is above `priority`.
  Load LessUrgentThan(const std::string& name, int priority) const;
  // Returns the task to evict first: at the model's highest (least urgent) priority number, the newest task of the
  // client that holds most by `size` (requests, bytes). Returns nullptr if there is none.
  WaitingTask* LeastUrgent(const std::string& name, int64_t Load::*size) const;

  // The shares that clients hold of a model's queue at one priority.
  struct Holds {
    int64_t num_clients = 0;  // clients that hold something; `client` always counts
    Load own;                 // held by `client`
  };
  Holds HoldsOf(const std::string& name, int priority, const std::string& client) const;
  // Returns the newest task of the client that holds most by `size` (requests, bytes), or nullptr if no client holds
  // any.
  WaitingTask* NewestOfLargestHold(const std::string& name, int priority, int64_t Load::*size) const;

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
    Load load;
    std::set<WaitingTask*, ByArrival> tasks;
  };
  // The waiting tasks of one model and priority, by client, and their load.
  struct Priority {
    Load all;
    absl::flat_hash_map<std::string, Hold> by_client;  // only clients with tasks
  };
  using Model = std::map<int, Priority>;  // by priority; only priorities with tasks; versions are counted together

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
