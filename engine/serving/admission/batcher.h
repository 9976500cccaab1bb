#pragma once

// Batcher is the queue between Engine::Submit and the workers: it admits tasks and forms batches of them. The engine
// owns one for all its devices. TaskQueue orders the tasks, LatencyModel predicts when they end, and MemoryModel
// predicts how many of them fit a batch.
//
// - Terms: a level is the set of tasks that run with one urgency. Level 0 is the most urgent. A task's level is its
//   priority (InferTask::priority) until the task is promoted to level 0. A turn is a client's or a model's next right
//   to run a task.
// - Ownership: the batcher owns a task from Push until Pop hands the task out in a batch; then the worker answers the
//   task. A task that expires, is cancelled, is evicted or can no longer meet its deadline leaves the queue without
//   running: then the batcher calls the task's `done` once, without holding the lock.
// - Admission: a task is refused at once if it is predicted to end after its deadline, or to start after the model's
//   max_queue_delay. If more workers are idle than tasks wait, every task that has not expired is admitted and runs, so
//   that predictions that are too high get corrected.
// - Order: the most urgent level runs first. Within a level models take turns, each with a share of the device by its
//   weight (ModelTurns). Within a model clients (InferTask::client) take turns, each with a part of the model's share
//   by its InferTask::client_share (ClientTurns). Among the clients whose turn is due, the client with the most urgent
//   task comes first. A task's urgency is the latest start that meets its deadline. A task moves to level 0 after half
//   of the time from its Push to its deadline, or after half of max_queue_delay if that is sooner.
// - Predictions: a predicted end takes into account the more urgent levels, the tasks of the same level whose turns
//   come first, and the tasks that other clients are expected to send. They are expected to use the part of the device
//   that they used recently (ClientTurns::ExpectedExtraLoad). So a client or a model with few requests is admitted,
//   however many requests another one has. The prediction holds while no further client or model comes to the level and
//   no client sends more than before. A newcomer takes its turns and no more: each of n waiting clients with equal
//   client_share keeps 1/n of the model's share of the device. A task that can no longer meet its deadline is dropped
//   (DEADLINE_UNMEETABLE) when its turn comes.
// - Levels above 0: a client that comes to such a level may find tasks of another client that were promoted to level 0.
//   All of these run before its tasks, until its own tasks are promoted.
// - Full queue: each model has a limit of waiting tasks and of their bytes. A task that comes to a full queue is
//   refused, with two exceptions. A more urgent task replaces a less urgent one. And a task whose client is within its
//   share replaces the newest task of the client with the largest load at the same level. A client's share is what more
//   urgent levels leave of the limit, divided by the number of clients that wait at the level; the new task counts as
//   held by its client. If there are as many clients as places, a further client is refused.
// - Batches: a batch is formed when a worker asks for one. All its tasks are for one model version and ask for the same
//   tensors in the same type, since a batch computes and copies for every sample what one of its tasks asks for. The
//   first task is the one whose turn it is, and further tasks join by turns. If workers are idle, the batch takes at
//   most an equal share of the version's tasks, so that each idle worker gets one too. A task joins if the batch with
//   the task fits the BatchLimits and max_batch_time, and is predicted (by an upper bound) to meet every deadline that
//   the batch without the task meets. A task that does not fit the limits, or asks for other tensors, is skipped if it
//   can wait until this batch ends; otherwise no further task joins. A task that would miss its deadline in this batch
//   is skipped if several clients have tasks at its level: it would be late and take the place of another client's
//   task. If other versions have waiting tasks, a task joins only if its level is at least as urgent as the most urgent
//   level among them.
// - Expiry is exact: the batcher has a thread that sleeps until the first task expires.
// - Threads: thread-safe. Only Pop and WaitUntilIdle block.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/steady_time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/memory_model.h"
#include "engine/serving/admission/served_model.h"
#include "engine/serving/admission/task_queue.h"
#include "engine/serving/admission/work_size.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct Batch {
  std::vector<QueuedTask> tasks;  // of one model version, all for the same tensors, in the order of their turns
  size_t device = 0;              // index of the device that runs the batch
  uint64_t id = 0;
  WorkSize load;               // of all tasks together
  absl::Duration predicted;    // device time; zero if nothing has been learned yet
  int level = 0;               // the level of the first task, whose turn it was
  double charged_seconds = 0;  // device time charged to the model's turns when the batch began
};

class Batcher {
 public:
  struct Options {
    int64_t max_queue_requests = 0;  // limit of waiting tasks per model, where the model's own limit is 0
    int64_t max_queue_bytes = 0;     // limit of the bytes of waiting clouds per model
    // For each device, the number of batches that run side by side. ServedModel::on_device has an entry for each.
    std::vector<int> num_workers = {1};
    MaxBatchBytes max_batch_bytes = UnlimitedBytes;  // called under the lock
    // A task joins a batch only if the batch is then predicted to take no longer than this. So small tasks do not wait
    // for seconds behind, or in, a batch of many large ones.
    absl::Duration max_batch_time = absl::InfiniteDuration();
    EngineObserver* observer = nullptr;
    // Called, under the lock, with the number of a model's waiting tasks; empty: OnQueueDepth of the observer.
    std::function<void(const std::string& model, int64_t tasks)> on_queue_depth;
    std::function<absl::Time()> now = SteadyNow;
    bool has_timer = true;  // false: nothing expires unless ExpireDue is called
  };

  explicit Batcher(Options options);
  // When the batcher is destroyed, every task must have been answered and no worker may wait in Pop.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Queues the task, and moves it out of the argument. A task without a deadline gets the model's default_timeout. On
  // an error the task stays with the caller, who must call its `done`:
  // - UNAVAILABLE (DRAINING): the batcher has stopped;
  // - INVALID_ARGUMENT (BAD_PRIORITY): the model has no such priority level;
  // - DEADLINE_EXCEEDED: the deadline has passed (DEADLINE_EXPIRED), or the task is predicted to end after its deadline
  //   or to wait for longer than max_queue_delay (DEADLINE_UNMEETABLE, with the time after which it could be met as
  //   the retry delay);
  // - RESOURCE_EXHAUSTED: the model's queue is full (QUEUE_FULL, with a retry delay), or there is no host memory
  //   (OUT_OF_MEMORY).
  // If the task replaces another one in a full queue, the `done` of the replaced task gets QUEUE_FULL. If the model has
  // waiting tasks that are less urgent than the new task, the replaced task is one of its least urgent priority,
  // otherwise one of the new task's priority. At that priority it is the newest task of the client with the largest
  // load.
  absl::Status Push(QueuedTask& task);

  // Removes a waiting task and returns true; returns false if no such task waits. The task's `done` gets CANCELLED, and
  // `reason` is passed to EngineObserver::OnDropped. If the task's time was over, `done` gets DEADLINE_EXCEEDED instead
  // and OnDropped gets DropReason::kExpired.
  bool Cancel(uint64_t ticket, DropReason reason = DropReason::kCancelled);

  // Blocks until there is work for the device, and returns a batch. If a worker of another device waits and the next
  // task is expected to end sooner there, the task is left to that worker. An empty batch means that the batcher has
  // stopped and no task is left. Expired tasks and tasks that can no longer meet their deadline are not returned: their
  // `done` gets DEADLINE_EXCEEDED.
  Batch Pop(size_t device);
  // Returns a batch without blocking, without regard to other devices. The batch is empty if no task waits, or if there
  // was no memory to form a batch.
  Batch TryPop(size_t device);

  // How a batch ran. The model's LatencyFit, SelectionFit and MemoryModel learn from it.
  struct Outcome {
    std::optional<int64_t> num_voxels;  // of all samples; no value if a sample failed
    bool in_parts = false;              // the batch ran in parts, so its time is not that of a batch of its size
    bool had_room = true;               // false: the batch ran in parts because it did not fit the device's memory
    double sample_share = 0;            // the share of the batch's time that Stage::kSample took, 0 to 1
  };
  // Reports that all tasks of a batch that Pop returned have been answered.
  void Finished(const Batch& batch, const Outcome& outcome);

  // Reports that a worker of the device takes no more batches. The worker must have called Finished for its last batch.
  void RemoveWorker(size_t device);

  // ExpireDue answers the tasks whose time in the queue is over. NextExpiry returns the time at which the next task
  // expires; InfiniteFuture if no task waits.
  void ExpireDue();
  absl::Time NextExpiry() const;

  // Refuses new tasks from now on. Pop still hands out the waiting tasks.
  void Stop();
  // Refuses new tasks, and answers every waiting task with UNAVAILABLE, reason DRAINING.
  void StopAndRefuse();

  // Blocks until every task that Push has queued has been answered.
  void WaitUntilIdle();

  // Returns the number of workers that wait in Pop.
  int num_waiting_workers() const;
  // Returns the time at which the timer's thread wakes by itself; InfinitePast while the thread does not sleep.
  absl::Time timer_wakes() const;

 private:
  // A task that left the queue without running, and the reason.
  struct Ended {
    std::unique_ptr<WaitingTask> task;
    DropReason reason = DropReason::kCancelled;
    absl::Status status;
  };

  // Returns the task to queue, with every field but `queued` and `arrival` set, or the error to refuse it with.
  absl::StatusOr<std::unique_ptr<WaitingTask>> Admit(const QueuedTask& task, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns OK if there is room. May make room by evicting less urgent tasks or tasks of clients above their share.
  absl::Status MakeRoom(const QueuedTask& task, const WaitingTask& waiting, std::vector<Ended>& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns true if the waiting tasks of the task's client, with this task, are no more than the client's share of the
  // model's queue.
  bool IsWithinShare(const QueuedTask& task, const WaitingTask& waiting, int64_t max_requests) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Lets the model's predictions learn from a batch.
  void Learn(const Batch& batch, const Outcome& outcome, absl::Duration device_time) const;

  bool HasWorkFor(size_t device) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Batch Form(size_t device, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the tasks of a batch: `lead`, whose turn it is, and the tasks that join it.
  std::vector<WaitingTask*> Fill(WaitingTask* lead, size_t device, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Moves the task from the queue to `ended`, to be answered. If that throws std::bad_alloc, the task still waits.
  void End(WaitingTask* task, DropReason reason, absl::Status status, std::vector<Ended>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(WaitingTask* task, absl::Time now, std::vector<Ended>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ObserveDepth(const std::string& model) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Answer(std::vector<Ended> ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTimer();

  const Options options_;
  const absl::Status out_of_memory_ = OutOfMemoryError();  // made while there is memory
  mutable absl::Mutex mutex_;
  SteadyCondVar first_expiry_changed_;
  // If the task that the thread sleeps for leaves, the thread sleeps on. So a request that comes to an empty queue
  // mostly expires later than this time, and need not wake the thread.
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);  // tasks that the timer's thread answers
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_ends_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  TaskQueue queue_ ABSL_GUARDED_BY(mutex_);
  LatencyModel latency_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> num_waiting_workers_ ABSL_GUARDED_BY(mutex_);  // by device
  std::thread timer_;
};

}  // namespace voxserve
