#pragma once

// A WaitingTask is a task that waits in the Batcher's queue, with the values that order it there. The Batcher makes it
// under its lock, and TaskQueue owns it while it waits.

#include <cstdint>
#include <set>

#include "absl/time/time.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/served_model.h"
#include "engine/serving/admission/work_size.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

// A task with the model version that will run it.
struct QueuedTask {
  uint64_t ticket = 0;  // unique among the waiting tasks
  InferTask task;
  ModelHandle model;    // never null; keeps the version alive
  absl::Time enqueued;  // the time of Batcher::Push, which sets it
};

struct WaitingTask {
  // Sets every field but `queued` and `arrival`, for a task that comes now. Predicts the cost and the latest start by
  // the latency model.
  WaitingTask(const QueuedTask& task, const LatencyModel& latency, absl::Time now);

  const std::string& client() const { return queued.task.client; }
  double client_share() const { return queued.task.client_share; }
  int priority() const { return queued.task.priority; }
  const ServedModel* model() const { return queued.model.get(); }

  QueuedTask queued;
  int level = 0;  // the task's priority, until the task is promoted to 0, the most urgent
  WorkSize load;
  double cost = 0;      // predicted seconds on the slowest device if the task ran alone; more than 0
  absl::Time deadline;  // of the answer; never infinite
  absl::Time expiry;    // the time until which the task may wait
  // The latest start with which the task, run alone, meets its deadline; not later than max_queue_delay from its Push.
  absl::Time latest_start;
  // latest_start, less the time that the task which this task replaces had waited (waiting_since), but not less than
  // the smaller of latest_start and Push's time + max_queue_delay / 2. An earlier urgency is more urgent.
  absl::Time urgency;
  absl::Time promotion;            // the time at which the task moves to level 0
  bool found_idle_worker = false;  // true: admitted without a prediction; the task runs unless it expires
  uint64_t arrival = 0;            // ascending number in the order of arrival; TaskQueue sets it
};

// Orders tasks by level, then by urgency, then by arrival.
struct MoreUrgent {
  bool operator()(const WaitingTask* a, const WaitingTask* b) const;
};
using TasksByUrgency = std::set<WaitingTask*, MoreUrgent>;

}  // namespace voxserve
