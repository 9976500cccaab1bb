#pragma once

// A task that waits, and what orders it in the queue.

#include <cstdint>
#include <set>

#include "absl/time/time.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/load.h"
#include "engine/serving/admission/served_model.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct QueuedTask {
  uint64_t ticket = 0;  // no two tasks that wait have the same
  InferTask task;
  ModelHandle model;    // never null; keeps the version alive
  absl::Time enqueued;  // Push sets it
};

struct WaitingTask {
  // Sets all but `queued` and `arrival`, for a task that comes now. Its times and its cost follow from the latency
  // model.
  WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now);

  const std::string& client() const { return queued.task.client; }
  double client_share() const { return queued.task.client_share; }
  int priority() const { return queued.task.priority; }
  const ServedModel* model() const { return queued.model.get(); }

  QueuedTask queued;
  int level = 0;  // its priority, until it is promoted to 0, the most urgent
  Load load;
  double cost = 0;                 // seconds that running it alone takes; positive
  absl::Time deadline;             // of the answer; never infinite
  absl::Time expiry;               // when waiting on is of no use
  absl::Time latest_start;         // to meet its deadline alone, and within the model's max_queue_delay
  absl::Time urgency;              // latest_start, less the time that the task which it replaces has waited
  absl::Time promotion;            // when it has waited for so long that it goes to level 0
  bool found_idle_worker = false;  // admitted without a prediction; it runs unless it expires
  uint64_t arrival = 0;            // the queue sets it; ascending
};

// The level, then the urgency, then the arrival.
struct MoreUrgent {
  bool operator()(const WaitingTask* a, const WaitingTask* b) const;
};
using TasksByUrgency = std::set<WaitingTask*, MoreUrgent>;

}  // namespace voxserve
