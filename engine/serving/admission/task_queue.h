#pragma once

// TaskQueue holds the tasks that wait, in every order that the Batcher asks for: by urgency within a model version, by
// expiry, by arrival.
//
// - Cost: every operation is logarithmic in the number of tasks.
// - Threads: not thread-safe. The Batcher owns it and calls it under its lock.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/served_model.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct QueuedTask {
  uint64_t ticket = 0;  // no two tasks that wait have the same
  InferTask task;
  ModelHandle model;    // never null; keeps the version alive
  absl::Time enqueued;  // Push sets it
};

// A task, and what orders it.
struct WaitingTask {
  // Sets all but `queued` and `arrival`, for a task that comes now. latest_start follows from the latency model.
  WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now);

  QueuedTask queued;
  int level = 0;       // its priority, until it is promoted to 0, the most urgent
  int64_t points = 0;  // of its clouds, as are the bytes
  int64_t bytes = 0;
  absl::Time deadline;             // of the answer; never infinite
  absl::Time expiry;               // when waiting on is of no use
  absl::Time latest_start;         // to meet its deadline alone, and within the model's max_queue_delay
  absl::Time urgency;              // latest_start, less the time that the task which it replaces has waited
  absl::Time promotion;            // when it has waited for so long that it goes to level 0
  bool found_idle_worker = false;  // admitted without a prediction; it runs unless it expires
  uint64_t arrival = 0;            // Add sets it; ascending
};

class TaskQueue {
 public:
  // More urgent: the level, then the urgency, then the arrival.
  struct MoreUrgent {
    bool operator()(const WaitingTask* a, const WaitingTask* b) const;
  };
  using Tasks = std::set<WaitingTask*, MoreUrgent>;
  struct Load {
    int64_t requests = 0;
    int64_t points = 0;
    int64_t bytes = 0;
  };
  // The tasks of one version. A promoted task comes earlier, and is still counted at its own priority: otherwise it
  // would keep out the urgent tasks that it was promoted to run among.
  struct Version {
    Tasks tasks;                 // most urgent first
    std::vector<Load> by_level;  // index: priority
  };

  WaitingTask* Add(std::unique_ptr<WaitingTask> task);
  std::unique_ptr<WaitingTask> Remove(WaitingTask* task);

  bool empty() const { return owned_.empty(); }
  int64_t size() const { return static_cast<int64_t>(owned_.size()); }
  // Returns nullptr where the task does not wait.
  WaitingTask* Find(uint64_t ticket) const;
  const std::map<const ServedModel*, Version>& versions() const { return versions_; }
  // Returns the work of levels 0 to `level`, by version.
  std::vector<WaitingWork> WorkUpTo(int level) const;
  // Returns the most urgent task of all; nullptr: none.
  WaitingTask* MostUrgent() const;
  // Returns the load of all versions of a model.
  Load OfModel(const std::string& name) const { return LessUrgentThan(name, -1); }
  // Returns the part of it that has a level above `level`.
  Load LessUrgentThan(const std::string& name, int level) const;
  // Returns the newest task of a model's highest level, which holds the least urgent ones; nullptr: none.
  WaitingTask* LeastUrgent(const std::string& name) const;

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
  struct Level {
    Load load;
    std::set<WaitingTask*, ByArrival> tasks;
  };
  using Model = std::map<int, Level>;  // levels with tasks, of all versions together

  void Link(WaitingTask* task);
  void Unlink(WaitingTask* task);

  absl::flat_hash_map<uint64_t, std::unique_ptr<WaitingTask>> owned_;  // by ticket
  std::map<const ServedModel*, Version> versions_;                     // with tasks
  absl::flat_hash_map<std::string, Model> models_;                     // with tasks
  std::set<WaitingTask*, Earlier> by_expiry_{Earlier{&WaitingTask::expiry}};
  std::set<WaitingTask*, Earlier> by_promotion_{Earlier{&WaitingTask::promotion}};  // of levels above 0
  uint64_t next_arrival_ = 0;
};

}  // namespace voxserve
