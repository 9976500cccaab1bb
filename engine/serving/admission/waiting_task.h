#pragma once

// A task that waits, and the values that order it in the queue.

#include <cstdint>
#include <set>

#include "absl/time/time.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/load.h"
#include "engine/serving/admission/served_model.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct QueuedTask {
  uint64_t ticket = 0;  // unique among the waiting tasks
  InferTask task;
  ModelHandle model;    // never null; keeps the version alive
  absl::Time enqueued;  // Push sets it
};

struct WaitingTask {
  // Sets all but `queued` and `arrival`, for a task that comes now. Computes its times and cost by the latency model.
  WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now);

  const std::string& client() const { return queued.task.client; }
  double client_share() const { return queued.task.client_share; }
  int priority() const { return queued.task.priority; }
  const ServedModel* model() const { return queued.model.get(); }

  QueuedTask queued;
  int level = 0;  // its priority, until it is promoted to 0, the most urgent
  Load load;
  double cost = 0;                 // predicted seconds of the device if it ran alone; positive
  absl::Time deadline;             // of the answer; never infinite
  absl::Time expiry;               // the time until which it may wait
  absl::Time latest_start;         // the latest start that meets its deadline, alone, and the model's max_queue_delay
  absl::Time urgency;              // latest_start, less the time that the task which it replaces has waited
  absl::Time promotion;            // the time at which it moves to level 0
  bool found_idle_worker = false;  // admitted without a prediction; it runs unless it expires
  uint64_t arrival = 0;            // set by the queue; ascending
};

// Orders tasks by level, then by urgency, then by arrival.
struct MoreUrgent {
  bool operator()(const WaitingTask* a, const WaitingTask* b) const;
};
using TasksByUrgency = std::set<WaitingTask*, MoreUrgent>;

}  // namespace voxserve
