#pragma once

// TaskQueue holds the tasks that wait, in every order that the Batcher asks for: by level, turn and urgency, by expiry,
// by arrival.
//
// - Levels rule: a task of a lower level comes first. Within a level models take turns (ModelTurns), and within a model
//   clients do (ClientTurns).
// - Promotion: a task that was promoted to level 0 takes turns there. It is still counted at its own priority:
//   otherwise it would keep out the urgent tasks that it was promoted to run among.
// - Cost: every operation is logarithmic in the number of tasks, but for WorkAhead, TasksOf, LeastUrgent and
//   NewestOfLargestHold, which are linear in the number of clients that wait. The queue's limit bounds that.
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
  // The tasks of one version that wait.
  struct Version {
    int64_t num_tasks = 0;
    std::map<int, int64_t> num_by_level;  // levels with tasks
    std::vector<Load> by_priority;
  };

  WaitingTask* Add(std::unique_ptr<WaitingTask> task);
  // The task leaves without having run.
  std::unique_ptr<WaitingTask> Remove(WaitingTask* task);
  // The task leaves to run, which is a turn of its client, and of its model for the predicted seconds of the device.
  std::unique_ptr<WaitingTask> Run(WaitingTask* task, double seconds);
  // Tasks of this level took so many seconds of the device more than Run was told, or less.
  void Correct(const std::string& model, int level, double seconds);

  bool empty() const { return owned_.empty(); }
  int64_t size() const { return static_cast<int64_t>(owned_.size()); }
  // Returns nullptr where the task does not wait.
  WaitingTask* Find(uint64_t ticket) const;
  const std::map<const ServedModel*, Version>& versions() const { return versions_; }
  // Returns the work, by version, that is expected to run before a task of this level, model and client that comes now:
  // all of more urgent priorities; of the same model, the client's own, and the other clients' as far as their turns
  // come first (ClientTurns::AheadBeyondWaiting); and the other models' with their turns (ModelTurns::WorkOfOthers).
  std::vector<WaitingWork> WorkAhead(int level, const ServedModel& model, const std::string& client) const;
  // Returns the task whose turn it is, of all; nullptr: none waits.
  WaitingTask* First() const { return levels_.empty() ? nullptr : levels_.begin()->second.First(); }
  // Returns the tasks of one version and level, in turn; the level has tasks. Valid until a task comes or goes.
  ClientTurns::Cursor TasksOf(const ServedModel* version, int level) const {
    return ClientTurns::Cursor(levels_.at(level).ClientsOf(version->info.name), version);
  }

  // Returns the load of all versions of a model.
  Load OfModel(const std::string& name) const { return LessUrgentThan(name, -1); }
  // Returns the part of it that has a priority above `priority`.
  Load LessUrgentThan(const std::string& name, int priority) const;
  // Returns the task that gives way first: at the model's highest priority number, which is the least urgent, the
  // newest of the client that holds most by `size` (requests, bytes); nullptr: none.
  WaitingTask* LeastUrgent(const std::string& name, int64_t Load::*size) const;

  // The clients' holds of a model's queue at one priority.
  struct Holds {
    int64_t num_clients = 0;  // that hold something, and the one that is asked for
    Load own;                 // of the one that is asked for
  };
  Holds HoldsOf(const std::string& name, int priority, const std::string& client) const;
  // Returns the newest task of the client that holds most by `size` (requests, bytes); nullptr: nobody holds any.
  WaitingTask* NewestOfLargestHold(const std::string& name, int priority, int64_t Load::*size) const;

  // Returns the first task to expire; nullptr: none.
  WaitingTask* FirstToExpire() const { return by_expiry_.empty() ? nullptr : *by_expiry_.begin(); }
  // Moves the tasks to level 0 that have waited until their promotion.
  void Promote(absl::Time now);

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
  // They belong to one model and priority.
  struct Priority {
    Load all;
    absl::flat_hash_map<std::string, Hold> by_client;  // with tasks
  };
  using Model = std::map<int, Priority>;  // priorities with tasks, of all versions together

  const Priority* FindPriority(const std::string& name, int priority) const;
  void Count(WaitingTask* task);
  void Discount(WaitingTask* task);
  void EnterLevel(WaitingTask* task);
  // seconds: of the device, where the task runs.
  void LeaveLevel(WaitingTask* task, std::optional<double> seconds);
  std::unique_ptr<WaitingTask> Release(WaitingTask* task);

  absl::flat_hash_map<uint64_t, std::unique_ptr<WaitingTask>> owned_;  // by ticket
  std::map<int, ModelTurns> levels_;                                   // with tasks
  std::map<const ServedModel*, Version> versions_;                     // with tasks
  absl::flat_hash_map<std::string, Model> models_;                     // with tasks
  std::set<WaitingTask*, Earlier> by_expiry_{Earlier{&WaitingTask::expiry}};
  std::set<WaitingTask*, Earlier> by_promotion_{Earlier{&WaitingTask::promotion}};  // of levels above 0
  uint64_t next_arrival_ = 0;
};

}  // namespace voxserve
